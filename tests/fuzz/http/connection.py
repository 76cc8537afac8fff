"""A client's connection on a plain socket, so that what is sent can be cut, split and repeated."""

import http.client
import socket
import ssl

SECONDS = 300  # without an answer: a busy machine may take one of them


class Gone(Exception):
    """The connection ended, as it may after what was sent."""


def trusting():
    """A context that asks for no name."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    return context


class Kept:
    """What was received and not read yet, for one answer after another."""

    def __init__(self, file):
        self.file = file

    def __getattr__(self, name):
        return getattr(self.file, name)

    def makefile(self, *_):
        return self

    def close(self):
        pass


class Connection:
    def __init__(self, port, tls):
        self.socket = socket.create_connection(("127.0.0.1", port), timeout=SECONDS)
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        if tls:
            self.socket = trusting().wrap_socket(self.socket)
        self.received = Kept(self.socket.makefile("rb"))
        self.stays = True

    def close(self):
        self.received.file.close()
        self.socket.close()

    def exchange(self, method, path, head, body, way, random):
        """(status, content type, body) of each answer. TimeoutError: there was none, which is a fault."""
        lines = [f"{method} {path} HTTP/1.1", *(f"{name}: {value}" for name, value in head.items())]
        if way == "chunked":
            lines.append("Transfer-Encoding: chunked")
            body = self.chunks(body, random)
        elif body or method == "POST":
            lines.append(f"Content-Length: {len(body)}")
        whole = "\r\n".join(lines).encode() + b"\r\n\r\n" + body
        try:
            return self.sent(whole, method, way, random)
        except TimeoutError:
            raise
        except (OSError, http.client.HTTPException) as error:
            raise Gone from error

    def sent(self, whole, method, way, random):
        if way == "cut":
            self.socket.sendall(whole[:random.randrange(len(whole))])
            raise Gone
        if way == "slow":
            for begin in range(0, len(whole), max(1, len(whole) // 5)):
                self.socket.sendall(whole[begin:begin + max(1, len(whole) // 5)])
        else:
            self.socket.sendall(whole * (2 if way == "twice" else 1))
        if way == "vanish":
            self.socket.recv(random.randrange(1, 200))
            raise Gone
        answers = [self.answer(method)]
        if way == "twice" and self.stays:
            answers.append(self.answer(method))
        return answers

    def answer(self, method):
        answer = http.client.HTTPResponse(self.received, method=method)
        try:
            answer.begin()
            text = answer.read()
            self.stays = not answer.will_close
            return answer.status, answer.headers.get("Content-Type", ""), text
        finally:
            answer.close()

    @staticmethod
    def chunks(body, random):
        made = b""
        while body:
            length = random.randrange(1, len(body) + 1)
            made += b"%x\r\n" % length + body[:length] + b"\r\n"
            body = body[length:]
        return made + b"0\r\n\r\n"
