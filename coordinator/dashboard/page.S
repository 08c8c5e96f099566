/* page.S - the dashboard's page as bytes of the program, and how many (uint64_t). */
    .section .rodata
    .global dashboard_page
    .global dashboard_page_size
dashboard_page:
    .incbin "coordinator/dashboard/index.html"
1:
    .balign 8
dashboard_page_size:
    .quad 1b - dashboard_page
    .type dashboard_page, %object
    .type dashboard_page_size, %object
    .section .note.GNU-stack, "", %progbits
