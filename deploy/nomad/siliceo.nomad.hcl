# Two coordinators behind a service, and a worker on every client that has a GPU.
# nomad job validate siliceo.nomad.hcl checks it.  The programs and the models are on the hosts.
job "siliceo" {
  datacenters = ["dc1"]
  type        = "service"

  group "coordinator" {
    count = 2
    constraint {
      operator = "distinct_hosts"
      value    = "true"
    }
    network {
      port "http" { static = 8080 }
      port "mesh" { static = 5690 }
    }
    service {
      name     = "siliceo"
      port     = "http"
      provider = "nomad"
      check {
        type     = "http"
        path     = "/readyz"
        interval = "5s"
        timeout  = "2s"
      }
    }
    task "coordinator" {
      driver       = "raw_exec"
      kill_signal  = "SIGTERM"
      # Above drain_s; the client's max_kill_timeout must allow it.
      kill_timeout = "330s"
      config {
        command = "/usr/local/bin/siliceo-coordinator"
        args    = ["serve", "--config", "/etc/siliceo/coordinator.conf", "--http", "0.0.0.0:${NOMAD_PORT_http}", "--mesh", "tcp://0.0.0.0:${NOMAD_PORT_mesh}"]
      }
      resources {
        cpu    = 1000
        memory = 512
      }
    }
  }

  group "worker" {
    count = 2
    constraint {
      operator = "distinct_hosts"
      value    = "true"
    }
    constraint {
      attribute = "${meta.siliceo_gpu}"
      value     = "true"
    }
    task "worker" {
      driver       = "raw_exec"
      kill_signal  = "SIGTERM"
      kill_timeout = "330s"
      config {
        command = "/usr/local/bin/siliceo-worker"
        args    = ["serve", "--config", "/etc/siliceo/worker.conf"]
      }
      resources {
        cpu    = 4000
        memory = 24576
      }
    }
  }
}
