"""The HTTP service: certified answers by a deadline, their evidence, and the client.

Its modules need the extra ``serve``; nothing else imports them.
"""
