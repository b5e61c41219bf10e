//! `linker/run.sh`, with programs that do nothing in place of cargo and QEMU.

use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;
use std::process::Command;

#[test]
fn more_cores_than_the_machine_has_are_warned_about() {
    let folder = std::env::temp_dir().join(format!("sluice-run-sh-{}", std::process::id()));
    fs::create_dir_all(&folder).unwrap();
    for (name, text) in [
        ("cargo", "exit 0"),
        ("timeout", "exit 33"),
        ("nproc", "echo 2"),
    ] {
        let path = folder.join(name);
        fs::write(&path, format!("#!/bin/sh\n{text}\n")).unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).unwrap();
    }
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("../linker/run.sh");
    let path = format!("{}:{}", folder.display(), std::env::var("PATH").unwrap());
    for (cores, is_warned) in [(None, false), (Some("2"), false), (Some("3"), true)] {
        let mut command = Command::new("bash");
        command
            .args([script.as_path(), Path::new(super::TALE)])
            .env("PATH", &path);
        match cores {
            Some(cores) => command.env("CORES", cores),
            None => command.env_remove("CORES"),
        };
        let ran = command.output().unwrap();
        let told = String::from_utf8_lossy(&ran.stderr).into_owned();
        assert!(ran.status.success(), "{told}");
        assert_eq!(
            told.contains("is more than the 2 CPUs here"),
            is_warned,
            "{cores:?}: {told}"
        );
    }
    fs::remove_dir_all(folder).unwrap();
}
