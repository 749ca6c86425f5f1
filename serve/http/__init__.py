"""The HTTP application: routes, limits, and the forms of requests and answers."""
