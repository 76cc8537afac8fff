// SPDX-License-Identifier: Apache-2.0
// The bytes of one connection, with TLS around them or without: one type of stream, so that Beast's
// parsers are compiled once. Private to the two files of Beast.
#pragma once

#include <sys/socket.h>

#include <boost/asio/io_context.hpp>
#include <boost/asio/ip/tcp.hpp>
#ifdef ESPALIER_TLS
#include <boost/asio/ssl/stream.hpp>
#endif
#include <memory>
#include <optional>
#include <utility>

#include "tls/context.hpp"

namespace espalier::server {

class Connection {
  public:
    using Socket = boost::asio::ip::tcp::socket;
    using executor_type = Socket::executor_type;
    using Error = boost::system::error_code;

#ifdef ESPALIER_TLS
    Connection(Socket socket, const tls::Context& context) : socket_(std::move(socket)) {
        if (context) tls_.emplace(socket_, tls::new_server_session(context));
    }
    bool has_tls() const { return tls_.has_value(); }
    void drop_tls() { tls_.reset(); }

    template <typename Handler>
    void handshake(Handler&& done) {
        tls_->async_handshake(boost::asio::ssl::stream_base::server, std::forward<Handler>(done));
    }
    template <typename Buffers, typename Handler>
    void async_read_some(const Buffers& buffers, Handler&& done) {
        if (tls_)
            tls_->async_read_some(buffers, std::forward<Handler>(done));
        else
            socket_.async_read_some(buffers, std::forward<Handler>(done));
    }
    template <typename Buffers, typename Handler>
    void async_write_some(const Buffers& buffers, Handler&& done) {
        if (tls_)
            tls_->async_write_some(buffers, std::forward<Handler>(done));
        else
            socket_.async_write_some(buffers, std::forward<Handler>(done));
    }
    // The other side reads the end behind what was written. The owner lives until it has left.
    void end_sending(std::shared_ptr<void> owner) {
        Error ignored;
        if (tls_)
            tls_->async_shutdown([owner = std::move(owner)](Error) {});
        else
            socket_.shutdown(Socket::shutdown_send, ignored);
    }
#else
    Connection(Socket socket, const tls::Context&) : socket_(std::move(socket)) {}
    bool has_tls() const { return false; }
    void drop_tls() {}
    template <typename Handler>
    void handshake(Handler&&) {}
    template <typename Buffers, typename Handler>
    void async_read_some(const Buffers& buffers, Handler&& done) {
        socket_.async_read_some(buffers, std::forward<Handler>(done));
    }
    template <typename Buffers, typename Handler>
    void async_write_some(const Buffers& buffers, Handler&& done) {
        socket_.async_write_some(buffers, std::forward<Handler>(done));
    }
    void end_sending(const std::shared_ptr<void>&) {
        Error ignored;
        socket_.shutdown(Socket::shutdown_send, ignored);
    }
#endif

    executor_type get_executor() { return socket_.get_executor(); }
    Socket& socket() { return socket_; }
    template <typename Handler>
    void wait_readable(Handler&& done) {
        socket_.async_wait(Socket::wait_read, std::forward<Handler>(done));
    }
    // First byte that waits to be read, and goes on waiting; negative: there is none.
    int first_byte() {
        unsigned char byte = 0;
        const auto count = ::recv(socket_.native_handle(), &byte, 1, MSG_PEEK | MSG_DONTWAIT);
        return count == 1 ? byte : -1;
    }

  private:
    Socket socket_;
#ifdef ESPALIER_TLS
    std::optional<boost::asio::ssl::stream<Socket&>> tls_;
#endif
};

}  // namespace espalier::server
