// SPDX-License-Identifier: Apache-2.0
#include "server/kv_events.hpp"

#include <fmt/format.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <deque>
#include <mutex>
#include <span>
#include <thread>
#include <utility>
#include <vector>

#include "server/kv_event_batch.hpp"
#include "server/zmq_library.hpp"

namespace espalier::server {
namespace {

constexpr int kHighWater = 100'000;              // messages that wait for a slow subscriber
constexpr int kLingerMilliseconds = 500;         // at the end
constexpr std::int64_t kMaxRequestBytes = 1024;  // of a frame that a subscriber sends
constexpr std::size_t kSequenceBytes = 8;
using SequenceBytes = std::array<unsigned char, kSequenceBytes>;
constexpr SequenceBytes kEndOfReplay = {0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff};

SequenceBytes big_endian(std::uint64_t number) {
    SequenceBytes bytes;
    for (std::size_t i = kSequenceBytes; i-- > 0; number >>= 8)
        bytes[i] = static_cast<unsigned char>(number & 0xff);
    return bytes;
}

// The other way round for an address that stands for many, as vLLM takes it.
bool is_bound(const std::string& endpoint) {
    return endpoint.find('*') != std::string::npos || endpoint.find("::") != std::string::npos ||
           endpoint.starts_with("ipc://") || endpoint.starts_with("inproc://");
}

// A message whose bytes copies share.
class ZmqMessage {
  public:
    ZmqMessage(const ZmqLibrary& zmq, std::span<const std::uint8_t> bytes) : zmq_(zmq) {
        if (zmq.msg_init_size(&message_, bytes.size()) != 0) {
            zmq.msg_init(&message_);  // no memory: an empty one
            return;
        }
        std::memcpy(zmq.msg_data(&message_), bytes.data(), bytes.size());
    }
    explicit ZmqMessage(const ZmqLibrary& zmq) : zmq_(zmq) { zmq.msg_init(&message_); }
    ZmqMessage(const ZmqMessage&) = delete;
    ~ZmqMessage() { zmq_.msg_close(&message_); }

    std::size_t size() { return zmq_.msg_size(&message_); }
    const unsigned char* data() {
        return static_cast<const unsigned char*>(zmq_.msg_data(&message_));
    }
    void send_copy(void* socket, int flags) {
        ZmqMessage copy(zmq_);
        zmq_.msg_copy(&copy.message_, &message_);
        zmq_.msg_send(&copy.message_, socket, flags);
    }
    bool receive(void* socket) { return zmq_.msg_recv(&message_, socket, ZMQ_DONTWAIT) >= 0; }
    bool more() { return zmq_.msg_more(&message_) != 0; }

  private:
    const ZmqLibrary& zmq_;
    zmq_msg_t message_;
};

struct KeptBatch {
    std::uint64_t sequence;
    std::unique_ptr<ZmqMessage> payload;
};

class ZmqKvEvents final : public KvEvents {
  public:
    ZmqKvEvents(const ZmqLibrary& zmq, std::string topic, Log& log)
        : zmq_(zmq), topic_(std::move(topic)), log_(log), woken_(::eventfd(0, EFD_CLOEXEC)) {
        waiting_.push_back(KvEvent{});  // routers forget what an earlier process held
    }
    ~ZmqKvEvents() override;

    Expected<void> open(const KvEventOptions& options);
    void run() {
        thread_ = std::thread([this] { publish_all(); });
        wake();
    }

    void stored(const cache::StoredPage& page) override;
    void removed(std::uint64_t hash, std::uint64_t salt) override;
    std::string endpoint() const override { return endpoint_; }
    std::string replay_endpoint() const override { return replay_endpoint_; }

  private:
    Expected<void*> open_socket(int kind, const std::string& endpoint, const char* field,
                                std::string& taken);
    void add(const KvEvent& event);
    void wake() const {
        const std::uint64_t one = 1;
        [[maybe_unused]] const auto written = ::write(woken_, &one, sizeof one);
    }
    void publish_all();
    void publish_waiting();
    void answer_replay();

    const ZmqLibrary zmq_;
    const std::string topic_;
    Log& log_;
    const int woken_;
    void* context_ = nullptr;
    void* publisher_ = nullptr;
    void* replay_ = nullptr;
    std::string endpoint_, replay_endpoint_;

    std::mutex mutex_;
    std::vector<KvEvent> waiting_;
    bool lost_ = false;  // more waited than may

    // The thread's own.
    std::vector<KvEvent> taken_;
    std::uint64_t next_sequence_ = 0;
    std::deque<KeptBatch> kept_;
    std::size_t kept_bytes_ = 0;
    std::atomic<bool> stopping_ = false;
    std::thread thread_;
};

Expected<void*> ZmqKvEvents::open_socket(int kind, const std::string& endpoint, const char* field,
                                         std::string& taken) {
    void* socket = zmq_.socket(context_, kind);
    const auto wrong = [&] {
        return fail_field(ErrorKind::io, field, "{}: {}", endpoint, zmq_.strerror(errno));
    };
    if (socket == nullptr) return wrong();
    const std::int64_t most_bytes = kMaxRequestBytes;
    // libzmq takes what stands in brackets for a device otherwise.
    const int is_ipv6 = endpoint.find('[') != std::string::npos ? 1 : 0;
    zmq_.setsockopt(socket, ZMQ_IPV6, &is_ipv6, sizeof is_ipv6);
    zmq_.setsockopt(socket, ZMQ_SNDHWM, &kHighWater, sizeof kHighWater);
    zmq_.setsockopt(socket, ZMQ_LINGER, &kLingerMilliseconds, sizeof kLingerMilliseconds);
    zmq_.setsockopt(socket, ZMQ_MAXMSGSIZE, &most_bytes, sizeof most_bytes);
    const bool binds = kind == ZMQ_ROUTER || is_bound(endpoint);
    const int opened =
        binds ? zmq_.bind(socket, endpoint.c_str()) : zmq_.connect(socket, endpoint.c_str());
    if (opened != 0) {
        auto error = wrong();
        zmq_.close(socket);
        return error;
    }
    std::array<char, 1024> name{};
    std::size_t size = name.size();
    if (binds && zmq_.getsockopt(socket, ZMQ_LAST_ENDPOINT, name.data(), &size) == 0)
        taken = name.data();
    else
        taken = endpoint;
    return socket;
}

Expected<void> ZmqKvEvents::open(const KvEventOptions& options) {
    context_ = zmq_.ctx_new();
    if (context_ == nullptr)
        return fail_field(ErrorKind::exhausted, "kv_events_endpoint", "no context of ZeroMQ");
    ESPALIER_ASSIGN_OR_RETURN(
        publisher_, open_socket(ZMQ_PUB, options.endpoint, "kv_events_endpoint", endpoint_));
    if (options.replay_endpoint.empty()) return {};
    ESPALIER_ASSIGN_OR_RETURN(replay_, open_socket(ZMQ_ROUTER, options.replay_endpoint,
                                                   "kv_events_replay_endpoint", replay_endpoint_));
    return {};
}

ZmqKvEvents::~ZmqKvEvents() {
    stopping_ = true;
    wake();
    if (thread_.joinable()) thread_.join();
    kept_.clear();
    for (void* socket : {publisher_, replay_})
        if (socket != nullptr) zmq_.close(socket);
    if (context_ != nullptr) zmq_.ctx_term(context_);
    ::close(woken_);
}

// ---- the engine's thread ------------------------------------------------------------------------

void ZmqKvEvents::stored(const cache::StoredPage& page) {
    if (page.salt != 0) return;  // what was asked to be kept apart is nobody else's to know
    KvEvent event{.kind = KvEvent::Kind::stored, .hash = page.hash};
    event.parent_hash = page.parent_hash;
    std::ranges::copy(page.tokens, event.tokens.begin());
    add(event);
}

void ZmqKvEvents::removed(std::uint64_t hash, std::uint64_t salt) {
    if (salt == 0) add(KvEvent{.kind = KvEvent::Kind::removed, .hash = hash});
}

void ZmqKvEvents::add(const KvEvent& event) {
    bool was_empty = false;
    {
        const std::lock_guard lock(mutex_);
        was_empty = waiting_.empty();
        if (waiting_.size() < kMaxWaiting) {
            waiting_.push_back(event);
        } else {
            // What was missed cannot be told later: the listeners begin anew, with less.
            lost_ = true;
            waiting_.assign(1, KvEvent{});
        }
    }
    if (was_empty) wake();
}

// ---- the thread ---------------------------------------------------------------------------------

void ZmqKvEvents::publish_all() {
    std::array<zmq_pollitem_t, 2> awaited = {
        {{nullptr, woken_, ZMQ_POLLIN, 0}, {replay_, 0, ZMQ_POLLIN, 0}}};
    while (!stopping_) {
        if (zmq_.poll(awaited.data(), replay_ == nullptr ? 1 : 2, -1) < 0) continue;
        if ((awaited[0].revents & ZMQ_POLLIN) != 0) {
            std::uint64_t count = 0;
            [[maybe_unused]] const auto read = ::read(woken_, &count, sizeof count);
        }
        publish_waiting();
        if (replay_ != nullptr && (awaited[1].revents & ZMQ_POLLIN) != 0) answer_replay();
    }
    publish_waiting();
}

void ZmqKvEvents::publish_waiting() {
    taken_.clear();
    bool lost = false;
    {
        const std::lock_guard lock(mutex_);
        std::swap(taken_, waiting_);
        lost = std::exchange(lost_, false);
    }
    if (taken_.empty()) return;
    if (lost) log_.warning("KV events came faster than they left: routers were told to begin anew");
    const double seconds =
        std::chrono::duration<double>(std::chrono::system_clock::now().time_since_epoch()).count();
    const std::vector<std::uint8_t> bytes = encode_kv_events(seconds, taken_);
    const std::uint64_t sequence = next_sequence_++;
    const SequenceBytes number = big_endian(sequence);
    auto payload = std::make_unique<ZmqMessage>(zmq_, bytes);
    zmq_.send(publisher_, topic_.data(), topic_.size(), ZMQ_SNDMORE);
    zmq_.send(publisher_, number.data(), number.size(), ZMQ_SNDMORE);
    payload->send_copy(publisher_, 0);
    kept_bytes_ += bytes.size();
    kept_.push_back({sequence, std::move(payload)});
    while (kept_.size() > kMaxBatches || (kept_bytes_ > kMaxBytes && kept_.size() > 1)) {
        kept_bytes_ -= kept_.front().payload->size();
        kept_.pop_front();
    }
}

// Identity, an empty frame, the first sequence number wanted; back come identity, an empty frame,
// number and payload for each that is kept, and at the end −1 with an empty payload.
void ZmqKvEvents::answer_replay() {
    std::vector<std::unique_ptr<ZmqMessage>> frames;
    for (bool more = true; more;) {
        auto frame = std::make_unique<ZmqMessage>(zmq_);
        if (!frame->receive(replay_)) return;
        more = frame->more();
        if (frames.size() <= 3) frames.push_back(std::move(frame));
    }
    if (frames.size() != 3 || frames[1]->size() != 0 || frames[2]->size() != kSequenceBytes) return;
    ZmqMessage &identity = *frames[0], &wanted = *frames[2];
    std::uint64_t first = 0;
    for (std::size_t i = 0; i < kSequenceBytes; ++i) first = (first << 8) | wanted.data()[i];
    const auto send = [&](const SequenceBytes& number, ZmqMessage& payload) {
        identity.send_copy(replay_, ZMQ_SNDMORE);
        zmq_.send(replay_, "", 0, ZMQ_SNDMORE);
        zmq_.send(replay_, number.data(), number.size(), ZMQ_SNDMORE);
        payload.send_copy(replay_, 0);
    };
    for (const KeptBatch& batch : kept_)
        if (batch.sequence >= first) send(big_endian(batch.sequence), *batch.payload);
    ZmqMessage nothing(zmq_);
    send(kEndOfReplay, nothing);
}

}  // namespace

Expected<std::shared_ptr<KvEvents>> KvEvents::start(const KvEventOptions& options, Log& log) {
    auto zmq = ZmqLibrary::load();
    if (!zmq) return fail_field(zmq.error().kind, "kv_events_endpoint", "{}", zmq.error().message);
    auto events = std::make_shared<ZmqKvEvents>(*zmq, options.topic, log);
    ESPALIER_RETURN_IF_ERROR(events->open(options));
    events->run();
    return std::shared_ptr<KvEvents>(std::move(events));
}

}  // namespace espalier::server
