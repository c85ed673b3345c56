"""HTTP: decisions and scores of local judges for any client. Needs the extra ``serve``.

::

    settings     what a server is started with, and what it refuses to be started with
    connections  how it speaks HTTP, and how long it waits for clients that dawdle
    bodies       a request's bytes become plain values: limits, zstd, strict JSON
    refusals     why a request is turned away, in the words of each dialect
    openai       POST /v1/decisions, OpenAI's dialect
    systemone    POST /v1/systemone, TypeSafe's
    scores       POST /v1/score, this project's own
    counters     what /metrics tells
    judges       the judges, loaded while the server listens already
    app          the routes put together around the judges
"""
