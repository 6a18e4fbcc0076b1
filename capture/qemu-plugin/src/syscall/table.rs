// SPDX-License-Identifier: GPL-2.0-or-later
//! The system calls of each architecture on which the plugin acts.

/// A system call that the plugin acts on, or [`Call::Other`].
#[derive(Clone, Copy, PartialEq)]
pub enum Call {
    /// No effect on memory.
    Other,
    /// `(fd, buffer, bytes, ...)`. Here and below, `true` means that the file is written.
    Plain(bool),
    /// `(fd, buffer, bytes, offset)`.
    PlainAt(bool),
    /// `(fd, iovec, count, ...)`.
    Vector(bool),
    /// `(fd, iovec, count, offset, ...)`.
    VectorAt(bool),
    /// `(socket, msghdr, ...)`.
    Message(bool),
    /// `(out, in, offset pointer, bytes)`.
    SendFile,
    /// `(in, offset pointer, out, offset pointer, bytes, ...)`.
    CopyRange,
    Mmap,
    Mprotect,
    Munmap,
    Mremap,
    Brk,
    /// `(address, bytes, advice)`.
    Madvise,
    /// `(option, ...)`.
    Prctl,
    Shmat,
    Shmdt,
    /// `(address, bytes)`.
    Mlock,
    /// `(address, bytes, flags)`.
    Mlock2,
    /// `(flags)`.
    MlockAll,
    /// `(address, bytes)`.
    Munlock,
    MunlockAll,
    Execve,
    /// `(folder, path, ...)`.
    ExecveAt,
    Fork,
    Vfork,
    /// `(flags, ...)`: a thread or a process.
    Clone,
    /// `(struct clone_args, ...)`, flags first.
    Clone3,
    /// `(process, status, ...)`; returns the process.
    Wait4,
    /// `(kind, process, struct siginfo, ...)`.
    Waitid,
    /// Changes which files the process may open.
    FileAccess,
    /// Ends one thread.
    Exit,
    ExitGroup,
}

/// One architecture of QEMU's guests.
pub struct Arch {
    /// QEMU's name for it.
    pub name: &'static str,
    /// `e_machine` of its programs.
    pub machine: u16,
    /// Sorted by number.
    pub calls: &'static [(i64, Call)],
}

pub static ARCHS: [Arch; 2] = [
    Arch {
        name: "x86_64",
        machine: 62,
        calls: &[
            (0, Call::Plain(false)),
            (1, Call::Plain(true)),
            (9, Call::Mmap),
            (10, Call::Mprotect),
            (11, Call::Munmap),
            (12, Call::Brk),
            (17, Call::PlainAt(false)),
            (18, Call::PlainAt(true)),
            (19, Call::Vector(false)),
            (20, Call::Vector(true)),
            (25, Call::Mremap),
            (28, Call::Madvise),
            (30, Call::Shmat),
            (40, Call::SendFile),
            (44, Call::Plain(true)),    // sendto
            (45, Call::Plain(false)),   // recvfrom
            (46, Call::Message(true)),  // sendmsg
            (47, Call::Message(false)), // recvmsg
            (56, Call::Clone),
            (57, Call::Fork),
            (58, Call::Vfork),
            (59, Call::Execve),
            (60, Call::Exit),
            (61, Call::Wait4),
            (67, Call::Shmdt),
            (105, Call::FileAccess), // setuid
            (106, Call::FileAccess), // setgid
            (113, Call::FileAccess), // setreuid
            (114, Call::FileAccess), // setregid
            (116, Call::FileAccess), // setgroups
            (117, Call::FileAccess), // setresuid
            (119, Call::FileAccess), // setresgid
            (122, Call::FileAccess), // setfsuid
            (123, Call::FileAccess), // setfsgid
            (126, Call::FileAccess), // capset
            (149, Call::Mlock),
            (150, Call::Munlock),
            (151, Call::MlockAll),
            (152, Call::MunlockAll),
            (155, Call::FileAccess), // pivot_root
            (157, Call::Prctl),
            (161, Call::FileAccess), // chroot
            (165, Call::FileAccess), // mount
            (166, Call::FileAccess), // umount2
            (231, Call::ExitGroup),
            (247, Call::Waitid),
            (272, Call::FileAccess), // unshare
            (295, Call::VectorAt(false)),
            (296, Call::VectorAt(true)),
            (308, Call::FileAccess), // setns
            (322, Call::ExecveAt),
            (325, Call::Mlock2),
            (326, Call::CopyRange),
            (327, Call::VectorAt(false)), // preadv2
            (328, Call::VectorAt(true)),  // pwritev2
            (435, Call::Clone3),
        ],
    },
    Arch {
        name: "aarch64",
        machine: 183,
        calls: &[
            (39, Call::FileAccess), // umount2
            (40, Call::FileAccess), // mount
            (41, Call::FileAccess), // pivot_root
            (51, Call::FileAccess), // chroot
            (63, Call::Plain(false)),
            (64, Call::Plain(true)),
            (65, Call::Vector(false)),
            (66, Call::Vector(true)),
            (67, Call::PlainAt(false)),
            (68, Call::PlainAt(true)),
            (69, Call::VectorAt(false)),
            (70, Call::VectorAt(true)),
            (71, Call::SendFile),
            (91, Call::FileAccess), // capset
            (93, Call::Exit),
            (94, Call::ExitGroup),
            (95, Call::Waitid),
            (97, Call::FileAccess),  // unshare
            (143, Call::FileAccess), // setregid
            (144, Call::FileAccess), // setgid
            (145, Call::FileAccess), // setreuid
            (146, Call::FileAccess), // setuid
            (147, Call::FileAccess), // setresuid
            (149, Call::FileAccess), // setresgid
            (151, Call::FileAccess), // setfsuid
            (152, Call::FileAccess), // setfsgid
            (159, Call::FileAccess), // setgroups
            (167, Call::Prctl),
            (196, Call::Shmat),
            (197, Call::Shmdt),
            (206, Call::Plain(true)),    // sendto
            (207, Call::Plain(false)),   // recvfrom
            (211, Call::Message(true)),  // sendmsg
            (212, Call::Message(false)), // recvmsg
            (214, Call::Brk),
            (215, Call::Munmap),
            (216, Call::Mremap),
            (220, Call::Clone),
            (221, Call::Execve),
            (222, Call::Mmap),
            (226, Call::Mprotect),
            (228, Call::Mlock),
            (229, Call::Munlock),
            (230, Call::MlockAll),
            (231, Call::MunlockAll),
            (233, Call::Madvise),
            (260, Call::Wait4),
            (268, Call::FileAccess), // setns
            (281, Call::ExecveAt),
            (284, Call::Mlock2),
            (285, Call::CopyRange),
            (286, Call::VectorAt(false)), // preadv2
            (287, Call::VectorAt(true)),  // pwritev2
            (435, Call::Clone3),
        ],
    },
];
