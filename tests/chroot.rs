//! The demo on a locked-down host: a root directory with nothing in it but the program.

use std::path::Path;
use std::process::Command;

use super::support::{TempDir, mcprelay};
use crate::support::process::say;

/// Copies `file` to the same path below `root`, links followed.
fn copy_into(root: &Path, file: &Path) {
    let target = root.join(file.strip_prefix("/").expect("an absolute path"));
    std::fs::create_dir_all(target.parent().expect("a folder")).expect("the folder can be made");
    std::fs::copy(file, target).expect("the file can be copied");
}

/// The shared objects that this build of the program needs; a static build has none.
fn shared_objects() -> Vec<String> {
    let Ok(output) = Command::new("ldd").arg(mcprelay()).output() else { return Vec::new() };
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    text.split_whitespace().filter(|word| word.starts_with('/')).map(str::to_owned).collect()
}

#[test]
fn the_demo_runs_in_a_root_directory_without_proc_dev_and_tmp() {
    let as_root = Command::new("id").arg("-u").output().is_ok_and(|output| output.stdout == b"0\n");
    if !as_root || !cfg!(target_os = "linux") {
        say(
            "SKIPPED the_demo_runs_in_a_root_directory_without_proc_dev_and_tmp: only root can change its root directory",
        );
        return;
    }
    let root = TempDir::new("chroot");
    for object in shared_objects() {
        copy_into(root.path(), Path::new(&object));
    }
    std::fs::copy(mcprelay(), root.path().join("mcprelay")).expect("the program can be copied");
    let output = Command::new("chroot").arg(root.path()).args(["/mcprelay", "demo"]).output().expect("chroot runs");
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    let errors = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(text.lines().last(), Some("demo: OK"), "{text}\n{errors}");
    assert_eq!(output.status.code(), Some(0), "{errors}");
    let left: Vec<String> = std::fs::read_dir(root.path())
        .expect("readable")
        .map(|entry| entry.expect("readable").file_name().to_string_lossy().into_owned())
        .filter(|name| !["lib", "lib64", "usr", "mcprelay"].contains(&name.as_str()))
        .collect();
    assert_eq!(left, Vec::<String>::new(), "the demo cleans up behind itself");
}
