// SPDX-License-Identifier: Apache-2.0
#include "base/mapped_file.hpp"

#include <gtest/gtest.h>
#include <signal.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstring>
#include <fstream>
#include <utility>

#include "support/temporary_directory.hpp"

namespace espalier {
namespace {

namespace fs = std::filesystem;

class MappedFileTest : public testing::Test {
  protected:
    // A test that waits for ever ends here instead.
    MappedFileTest() { alarm(120); }
    ~MappedFileTest() override { alarm(0); }

    Error error_of(const fs::path& path) {
        const auto file = MappedFile::open(path);
        EXPECT_FALSE(file) << path;
        return file ? Error{} : file.error();
    }
    TemporaryDirectory directory_;
};

TEST_F(MappedFileTest, ReadsRegularFilesAlsoThroughLinksAndEmptyOnes) {
    const fs::path file = directory_.path() / "file", link = directory_.path() / "link";
    std::ofstream(file) << "seven b";
    fs::create_symlink("file", link);
    for (const fs::path& path : {file, link}) {
        const auto mapped = MappedFile::open(path);
        ASSERT_TRUE(mapped) << mapped.error().message;
        EXPECT_EQ(mapped->size(), 7u);
        EXPECT_EQ(*read_text_file(path, 7), "seven b");
        EXPECT_EQ(**read_optional_text_file(path, 7), "seven b");
        EXPECT_FALSE(read_optional_text_file(path, 6));
    }
    std::ofstream(directory_.path() / "empty");
    const auto empty = read_optional_text_file(directory_.path() / "empty", 1);
    ASSERT_TRUE(empty);
    EXPECT_EQ(*empty, "");
}

TEST_F(MappedFileTest, OnlyAnAbsentFileIsAbsent) {
    const auto absent = read_optional_text_file(directory_.path() / "absent", 1);
    ASSERT_TRUE(absent);
    EXPECT_FALSE(*absent);
    EXPECT_EQ(error_of(directory_.path() / "absent").kind, ErrorKind::not_found);
    const fs::path link = directory_.path() / "link", loop = directory_.path() / "loop";
    fs::create_symlink("nowhere/blob", link);
    fs::create_symlink("loop", loop);
    EXPECT_EQ(error_of(link).message,
              link.string() + ": a link to nowhere/blob, which is not there");
    EXPECT_FALSE(read_optional_text_file(link, 1));
    EXPECT_FALSE(read_optional_text_file(loop, 1));
}

TEST_F(MappedFileTest, RefusesWhatIsNoRegularFileWithoutWaiting) {
    const fs::path fifo = directory_.path() / "fifo", socket = directory_.path() / "socket";
    ASSERT_EQ(mkfifo(fifo.c_str(), 0600), 0);
    const int descriptor = ::socket(AF_UNIX, SOCK_STREAM, 0);
    sockaddr_un address{};
    address.sun_family = AF_UNIX;
    ASSERT_LT(socket.string().size(), sizeof address.sun_path);
    std::strcpy(address.sun_path, socket.c_str());
    ASSERT_EQ(bind(descriptor, reinterpret_cast<sockaddr*>(&address), sizeof address), 0);
    for (const fs::path& path : {fifo, socket, fs::path("/dev/null"), directory_.path()}) {
        EXPECT_EQ(error_of(path).message, path.string() + ": not a regular file");
        EXPECT_FALSE(read_optional_text_file(path, 1));
    }
    close(descriptor);
}

// Another process cuts a file short that is mapped here: the bytes are zeros and an error names the
// file, as long as it is mapped; the process goes on.
TEST_F(MappedFileTest, BytesThatAreLostAreNamed) {
    const fs::path path = directory_.path() / "weights", other = directory_.path() / "other";
    std::ofstream(path) << std::string(5 * 4096, 'x');
    std::ofstream(other) << "whole";
    {
        auto opened = MappedFile::open(path);
        ASSERT_TRUE(opened) << opened.error().message;
        const MappedFile moved = std::move(*opened);
        const auto bytes = moved.bytes();
        EXPECT_EQ(bytes[3 * 4096], std::byte{'x'});
        EXPECT_TRUE(check_mapped_files());
        fs::resize_file(path, 4096);
        EXPECT_EQ(bytes[100], std::byte{'x'});
        EXPECT_TRUE(check_mapped_files());
        EXPECT_EQ(bytes[2 * 4096 + 7], std::byte{0});
        EXPECT_EQ(bytes[4 * 4096], std::byte{0});
        EXPECT_EQ(bytes[1 * 4096], std::byte{0});
        const auto checked = check_mapped_files();
        ASSERT_FALSE(checked);
        EXPECT_EQ(checked.error().kind, ErrorKind::io);
        EXPECT_TRUE(checked.error().message.starts_with(path.string() + ": byte 8199 cannot"))
            << checked.error().message;
        EXPECT_FALSE(read_text_file(other, 100));
    }
    EXPECT_TRUE(check_mapped_files());
    EXPECT_TRUE(read_text_file(other, 100));
}

// SIGBUS elsewhere ends the process as ever: by the signal, under a sanitizer by its report.
TEST(MappedFileDeathTest, OtherBusErrorsEndTheProcess) {
    EXPECT_EXIT(
        {
            const TemporaryDirectory directory;
            std::ofstream(directory.path() / "file") << "text";
            const auto mapped = MappedFile::open(directory.path() / "file");
            raise(SIGBUS);
        },
        [](int status) {
            return WIFSIGNALED(status) ? WTERMSIG(status) == SIGBUS : WEXITSTATUS(status) != 0;
        },
        "");
}

}  // namespace
}  // namespace espalier
