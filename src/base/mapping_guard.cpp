// SPDX-License-Identifier: Apache-2.0
#include "base/mapping_guard.hpp"

#include <signal.h>
#include <sys/mman.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <cstdint>
#include <mutex>
#include <string>
#include <utility>

namespace espalier {

// The handler walks the list without a lock: entries are never freed, and a free one has no bytes.
struct MappingGuard::Entry {
    std::atomic<std::uintptr_t> begin = 0, end = 0;
    std::atomic<std::uintptr_t> lost = 0;  // first address that could not be read; 0: none
    Entry* next = nullptr;
    std::string path;
};

namespace {

using Entry = MappingGuard::Entry;

std::mutex mutex;  // of everything but what the handler touches
std::atomic<Entry*> entries = nullptr;
std::atomic<int> files_with_losses = 0;
std::uintptr_t page_bytes = 4096;
struct sigaction handler_before = {};

// Async-signal-safe: atomics and one system call.
bool put_zeros(Entry& entry, std::uintptr_t address) {
    const std::uintptr_t page = address / page_bytes * page_bytes;
    const std::uintptr_t end = (entry.end + page_bytes - 1) / page_bytes * page_bytes;
    if (mmap(reinterpret_cast<void*>(page), end - page, PROT_READ,
             MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED | MAP_NORESERVE, -1, 0) == MAP_FAILED)
        return false;
    std::uintptr_t none = 0;
    if (entry.lost.compare_exchange_strong(none, address)) ++files_with_losses;
    return true;
}

void on_bus_error(int number, siginfo_t* info, void* context) {
    const int error = errno;
    const auto address = reinterpret_cast<std::uintptr_t>(info->si_addr);
    const bool fault = info->si_code > 0;  // not sent by a process, which has no address
    for (Entry* entry = entries; fault && entry != nullptr; entry = entry->next)
        if (entry->begin <= address && address < entry->end && put_zeros(*entry, address)) {
            errno = error;
            return;
        }
    if ((handler_before.sa_flags & SA_SIGINFO) != 0)
        return handler_before.sa_sigaction(number, info, context);
    // Delivered again when this returns, to what was there before.
    sigaction(SIGBUS, &handler_before, nullptr);
    raise(number);
}

void install_handler() {
    page_bytes = static_cast<std::uintptr_t>(sysconf(_SC_PAGESIZE));
    struct sigaction action = {};
    action.sa_sigaction = on_bus_error;
    action.sa_flags = SA_SIGINFO | SA_ONSTACK;
    sigemptyset(&action.sa_mask);
    sigaction(SIGBUS, &action, &handler_before);
}

Entry& free_entry() {
    for (Entry* entry = entries; entry != nullptr; entry = entry->next)
        if (entry->end == 0) return *entry;
    auto* const made = new Entry;
    made->next = entries;
    entries = made;
    return *made;
}

}  // namespace

MappingGuard::MappingGuard(std::span<const std::byte> mapped, const std::filesystem::path& path) {
    if (mapped.empty()) return;
    const std::lock_guard lock(mutex);
    if (entries == nullptr) install_handler();
    entry_ = &free_entry();
    entry_->path = path.string();
    entry_->begin = reinterpret_cast<std::uintptr_t>(mapped.data());
    entry_->end = entry_->begin + mapped.size();
}

MappingGuard::MappingGuard(MappingGuard&& other) noexcept
    : entry_(std::exchange(other.entry_, nullptr)) {}

MappingGuard& MappingGuard::operator=(MappingGuard&& other) noexcept {
    std::swap(entry_, other.entry_);
    return *this;
}

MappingGuard::~MappingGuard() {
    if (entry_ == nullptr) return;
    const std::lock_guard lock(mutex);
    entry_->end = 0;
    if (entry_->lost.exchange(0) != 0) --files_with_losses;
}

Expected<void> check_mapped_files() {
    if (files_with_losses == 0) return {};
    const std::lock_guard lock(mutex);
    for (const Entry* entry = entries; entry != nullptr; entry = entry->next)
        if (const std::uintptr_t lost = entry->lost; lost != 0)
            return fail(ErrorKind::io,
                        "{}: byte {} cannot be read any more: the file was cut short, or its disk "
                        "fails, since it was opened",
                        entry->path, lost - entry->begin);
    return {};
}

}  // namespace espalier
