"""The process: HTTP, configuration, console, command line, and the wiring of all rooms."""
