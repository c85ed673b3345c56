"""HTTP: decisions and scores of local judges for any client. Needs the extra ``serve``.

::

    settings     what a server is started with, and what it refuses to be started with
    connections  how it speaks HTTP, and how long it waits for clients that dawdle
    bodies       bytes become plain values, and what does not fit is refused
    dialects     what clients send and get, on each route
    watch        what operators see: counters, logs, ids of requests
    app          the routes put together around the judges, which are loaded while it listens
"""
