/* page.S - the dashboard's page as bytes of the program. */
    .section .rodata
    .global dashboard_page
    .global dashboard_page_end
dashboard_page:
    .incbin "coordinator/dashboard/index.html"
dashboard_page_end:
    .byte 0
    .type dashboard_page, %object
    .type dashboard_page_end, %object
    .section .note.GNU-stack, "", %progbits
