"""HTTP: decisions and scores of local judges for any client. Needs the extra ``serve``.

::

    settings     options of a server, and their validation
    connections  HTTP, and how long the server waits for slow clients
    bodies       bytes become plain values; bad bodies are refused
    dialects     requests and answers of each route
    watch        for operators: counters, logs, ids of requests
    app          the routes and the judges, which load while the server listens
"""
