//! How much memory is in use, of what this process may use.
//!
//! In a control group with a limit (version 2 or 1) that limit counts, as in a container; otherwise the machine's memory does.

use std::fs;
use std::path::{Path, PathBuf};

/// Memory in use and the limit, in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Memory {
    /// In use.
    pub used: u64,
    /// What may be used.
    pub limit: u64,
}

impl Memory {
    /// The share in use, 0 to 1.
    pub fn ratio(self) -> f64 {
        if self.limit == 0 { 0.0 } else { self.used as f64 / self.limit as f64 }
    }

    /// Reads it from the system. `None` where that is not known how: outside of Linux.
    pub fn now() -> Option<Self> {
        Self::below(Path::new("/"))
    }

    fn below(root: &Path) -> Option<Self> {
        let machine = machine(root)?;
        let group = control_group(root).filter(|group| group.limit < machine.limit);
        Some(group.unwrap_or(machine))
    }
}

fn machine(root: &Path) -> Option<Memory> {
    let text = fs::read_to_string(root.join("proc/meminfo")).ok()?;
    let bytes = |name: &str| {
        let line = text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'))?;
        Some(line.trim().trim_end_matches(" kB").parse::<u64>().ok()? * 1024)
    };
    let limit = bytes("MemTotal")?;
    Some(Memory { used: limit.saturating_sub(bytes("MemAvailable")?), limit })
}

/// The group of this process, or the nearest one above it with a limit.
fn control_group(root: &Path) -> Option<Memory> {
    let groups = fs::read_to_string(root.join("proc/self/cgroup")).ok()?;
    groups.lines().find_map(|line| {
        let mut parts = line.splitn(3, ':').skip(1);
        let (controllers, path) = (parts.next()?, parts.next()?);
        let files = match controllers {
            "" => ("sys/fs/cgroup", "memory.max", "memory.current"),
            _ if controllers.split(',').any(|name| name == "memory") => {
                ("sys/fs/cgroup/memory", "memory.limit_in_bytes", "memory.usage_in_bytes")
            }
            _ => return None,
        };
        limited(root.join(files.0), path, files.1, files.2)
    })
}

fn limited(mount: PathBuf, path: &str, limit: &str, used: &str) -> Option<Memory> {
    let number = |file: PathBuf| fs::read_to_string(file).ok()?.trim().parse().ok();
    // Inside a container the path of the host may not exist; the mount itself is then the group.
    let groups = Path::new(path.trim_start_matches('/')).ancestors().map(|group| mount.join(group));
    groups
        .filter_map(|group| {
            Some(Memory { limit: number(group.join(limit))?, used: number(group.join(used))? })
        })
        .min_by_key(|memory| memory.limit)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn system(files: &[(&str, &str)]) -> Option<Memory> {
        let root = tempfile::tempdir().unwrap();
        for (path, text) in files {
            let path = root.path().join(path);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        }
        Memory::below(root.path())
    }

    const MACHINE: (&str, &str) =
        ("proc/meminfo", "MemTotal: 1000 kB\nMemFree: 1 kB\nMemAvailable: 250 kB\n");

    #[test]
    fn without_a_limit_the_machine_counts() {
        let memory = system(&[
            MACHINE,
            ("proc/self/cgroup", "0::/app\n"),
            ("sys/fs/cgroup/app/memory.max", "max\n"),
            ("sys/fs/cgroup/app/memory.current", "77\n"),
        ]);

        assert_eq!(memory, Some(Memory { used: 750 * 1024, limit: 1000 * 1024 }));
    }

    #[test]
    fn the_tightest_limit_of_version_2_counts() {
        let memory = system(&[
            MACHINE,
            ("proc/self/cgroup", "0::/pod/app\n"),
            ("sys/fs/cgroup/pod/app/memory.max", "4000\n"),
            ("sys/fs/cgroup/pod/app/memory.current", "1000\n"),
            ("sys/fs/cgroup/pod/memory.max", "2000\n"),
            ("sys/fs/cgroup/pod/memory.current", "1900\n"),
        ]);

        assert_eq!(memory.unwrap().ratio(), 0.95);
    }

    #[test]
    fn version_1_counts_when_memory_is_there() {
        let memory = system(&[
            MACHINE,
            ("proc/self/cgroup", "3:cpu,cpuacct:/a\n2:memory:/a\n0::/\n"),
            ("sys/fs/cgroup/memory/a/memory.limit_in_bytes", "2000\n"),
            ("sys/fs/cgroup/memory/a/memory.usage_in_bytes", "500\n"),
        ]);

        assert_eq!(memory, Some(Memory { used: 500, limit: 2000 }));
    }

    #[test]
    fn where_nothing_can_be_read_nothing_is_claimed_about_memory() {
        assert_eq!(system(&[]), None);
    }
}
