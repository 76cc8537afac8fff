// SPDX-License-Identifier: Apache-2.0
#include "base/mapped_file.hpp"

#include <gtest/gtest.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include <cstring>
#include <fstream>

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

}  // namespace
}  // namespace espalier
