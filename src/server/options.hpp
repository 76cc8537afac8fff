// SPDX-License-Identifier: Apache-2.0
// Everything about a server that a user may choose, apart from its engine. Each option stands once
// in ServerOptions::flags(), with all that is known about it: the flag, its help, its limits, its
// environment variable, its key in a file and its line in docs/flags.md go by that list. Plain
// data.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "base/error.hpp"
#include "output/formats.hpp"

namespace espalier::server {

struct Flag {
    const char* name;  // of the field in errors; the flag is --name, with hyphens
    const char* help;
    double least = 0;  // of numbers
    double most = 0;
    std::vector<std::string> one_of = {};  // of words; empty: any text
};

struct ServerOptions {
    std::string host = "127.0.0.1";
    std::int64_t port = 8000;
    std::vector<std::string> api_key;
    std::string api_key_file;
    std::string tls_cert, tls_key;  // files
    std::string monitor_host = "127.0.0.1";
    std::int64_t monitor_port = -1;
    std::vector<std::string> served_model_name;
    std::vector<std::string> allowed_host, allowed_origin;
    std::string chat_template;  // a file
    std::string tool_format = "auto", reasoning_format = "auto";
    std::string billing_header = "drop";
    std::string json_whitespace = "any";
    std::int64_t max_tools = 128;
    std::int64_t max_tools_bytes = 1 << 20;
    std::int64_t max_connections = 4096;
    std::int64_t max_body_bytes = 16 << 20;
    std::int64_t max_header_bytes = 16 << 10;
    double idle_seconds = 75;
    double read_seconds = 30;
    double write_seconds = 30;
    double request_seconds = 3600;
    double drain_seconds = 30;
    double heartbeat_seconds = 120;
    std::int64_t workers = 2;
    std::string kv_events_endpoint, kv_events_replay_endpoint, kv_events_topic;
    std::string metrics_names = "both";
    std::string log_format = "text";
    std::string log_level = "info";
    std::string access_log = "on";

    // visit(flag, value) for each.
    template <typename Visitor, typename Self>
    static void flags(Visitor&& visit, Self& self);
};

// Numbers within their limits, words among their choices; the error names the field.
Expected<void> check_options(const ServerOptions& options);

template <typename Visitor, typename Self>
void ServerOptions::flags(Visitor&& visit, Self& self) {
    visit(Flag{.name = "host", .help = "Address to listen on; 0.0.0.0 lets other machines in"},
          self.host);
    visit(Flag{.name = "port",
               .help = "Port to listen on; 0: any free one, which is logged",
               .least = 0,
               .most = 65535},
          self.port);
    visit(Flag{.name = "api_key",
               .help = "Bearer token that clients must send; may be repeated; different keys share "
                       "no cached pages"},
          self.api_key);
    visit(Flag{.name = "api_key_file",
               .help = "File of more keys, a line NAME KEY [requests=N] [tokens=N] each; read "
                       "again on SIGHUP"},
          self.api_key_file);
    visit(Flag{.name = "tls_cert",
               .help = "PEM file of the certificate and its chain: the server speaks https; read "
                       "again on SIGHUP"},
          self.tls_cert);
    visit(Flag{.name = "tls_key", .help = "PEM file of its private key, without a password"},
          self.tls_key);
    visit(Flag{.name = "monitor_host", .help = "Address of --monitor-port"}, self.monitor_host);
    visit(Flag{.name = "monitor_port",
               .help = "Port of its own for /metrics and the probes, without key or TLS; 0: any "
                       "free one; -1: none",
               .least = -1,
               .most = 65535},
          self.monitor_port);
    visit(Flag{.name = "served_model_name",
               .help = "Model name in requests and answers, the directory's if not given; may be "
                       "repeated, answers have the first"},
          self.served_model_name);
    visit(Flag{.name = "allowed_host",
               .help = "Host name that clients of a server without keys may use, beside addresses "
                       "and localhost; *: any; may be repeated"},
          self.allowed_host);
    visit(Flag{.name = "allowed_origin",
               .help = "Web page that may use the server, as https://chat.example.org; *: any; may "
                       "be repeated"},
          self.allowed_origin);
    visit(Flag{.name = "chat_template", .help = "Jinja template of chats, in place of the model's"},
          self.chat_template);
    visit(
        Flag{.name = "tool_format",
             .help = "Form of the model's function calls; auto: as its template and tokenizer show",
             .one_of = output::tool_format_names()},
        self.tool_format);
    visit(Flag{.name = "reasoning_format",
               .help = "Form of the model's reasoning; auto: as its template and tokenizer show",
               .one_of = output::reasoning_format_names()},
          self.reasoning_format);
    visit(Flag{.name = "billing_header",
               .help = "Line x-anthropic-billing-header of /v1/messages, which changes with every "
                       "request: drop, or keep (no cached prefix is found)",
               .one_of = {"drop", "keep"}},
          self.billing_header);
    visit(Flag{.name = "json_whitespace",
               .help = "White space in structured JSON: any (the model's choice) or least (one "
                       "form, fewer tokens)",
               .one_of = {"any", "least"}},
          self.json_whitespace);
    visit(Flag{.name = "max_tools",
               .help = "Functions that a request may declare",
               .least = 0,
               .most = 65536},
          self.max_tools);
    visit(Flag{.name = "max_tools_bytes",
               .help = "Largest JSON of a request's functions, in bytes",
               .least = 0,
               .most = 1 << 30},
          self.max_tools_bytes);
    visit(Flag{.name = "max_connections",
               .help = "Open connections; more get 503",
               .least = 1,
               .most = 1e6},
          self.max_connections);
    visit(Flag{.name = "max_body_bytes",
               .help = "Largest request body in bytes; larger ones get 413",
               .least = 1024,
               .most = 1 << 30},
          self.max_body_bytes);
    visit(Flag{.name = "max_header_bytes",
               .help = "Largest request head in bytes; larger ones get 431",
               .least = 1024,
               .most = 1 << 20},
          self.max_header_bytes);
    visit(Flag{.name = "idle_seconds",
               .help = "Time that a connection may wait for a request",
               .least = 0.1,
               .most = 86400},
          self.idle_seconds);
    visit(Flag{.name = "read_seconds",
               .help = "Time for a request's body, and for a TLS handshake",
               .least = 0.1,
               .most = 86400},
          self.read_seconds);
    visit(Flag{.name = "write_seconds",
               .help = "Time after which a client that takes nothing is cut off",
               .least = 0.1,
               .most = 86400},
          self.write_seconds);
    visit(Flag{.name = "request_seconds",
               .help = "Time after which a request ends with an error; 0: never",
               .least = 0,
               .most = 1e9},
          self.request_seconds);
    visit(Flag{.name = "drain_seconds",
               .help = "Time that running requests have after SIGTERM",
               .least = 0,
               .most = 86400},
          self.drain_seconds);
    visit(Flag{.name = "heartbeat_seconds",
               .help = "Time without a round of the engine after which /livez fails",
               .least = 1,
               .most = 1e9},
          self.heartbeat_seconds);
    visit(Flag{.name = "workers",
               .help = "Threads that parse and tokenise requests",
               .least = 1,
               .most = 256},
          self.workers);
    visit(Flag{.name = "metrics_names",
               .help = "Names in /metrics: Espalier's, vLLM's for what it has too, or both",
               .one_of = {"espalier", "vllm", "both"}},
          self.metrics_names);
    visit(Flag{.name = "kv_events_endpoint",
               .help = "ZeroMQ address, as tcp://*:5557, that tells routers the prefix cache's "
                       "pages with their tokens, which are prompts"},
          self.kv_events_endpoint);
    visit(Flag{.name = "kv_events_replay_endpoint",
               .help = "ZeroMQ address, as tcp://*:5558, for routers that missed messages"},
          self.kv_events_replay_endpoint);
    visit(Flag{.name = "kv_events_topic", .help = "First frame of its messages"},
          self.kv_events_topic);
    visit(Flag{.name = "log_format",
               .help = "Form of the lines on standard error",
               .one_of = {"text", "json"}},
          self.log_format);
    visit(Flag{.name = "log_level",
               .help = "Lowest level that is written; debug: requests of probes too",
               .one_of = {"debug", "info", "warning", "error"}},
          self.log_level);
    visit(Flag{.name = "access_log",
               .help = "Line for every request: on or off",
               .one_of = {"on", "off"}},
          self.access_log);
}

}  // namespace espalier::server
