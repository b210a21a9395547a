//! A lab with directories for wishes and journals, and the commands that use them.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::process::{Command, Output};

use super::TempDir;

pub struct Lab(pub TempDir);

impl Lab {
    pub fn new(name: &str) -> Lab {
        let lab = Lab(TempDir::new(name));
        fs::create_dir(lab.0.0.join("etc")).expect("a directory");
        fs::set_permissions(lab.0.0.join("etc"), fs::Permissions::from_mode(0o755)).expect("mode");
        lab
    }

    pub fn command(&self, args: &str) -> Command {
        let mut command = super::command();
        command.args(args.split(' ')).env("NAPKIN_STATE", self.0.0.join("state"));
        command.env("NAPKIN_ETC", self.0.0.join("etc")).env_remove("SSH_CONNECTION");
        command
    }

    pub fn napkin(&self, args: &str) -> Output {
        self.command(args).output().expect("the binary runs")
    }
}
