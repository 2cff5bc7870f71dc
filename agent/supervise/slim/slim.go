// Package slim is the executable cmd/nusa-supervise, where the build has put it
// in (tag slim, `make build`), and where it is put for the agent that starts one
// for each task.
package slim

import (
	"bytes"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
)

// Name of the file.
const Name = "nusa-supervise"

// mode of the file: in a container root is not the file's owner. On the host the
// folder is private.
const mode = 0o755

// Argv writes the executable into a folder, unless it is there, and returns how
// to start a supervisor with it. An error: it is not to be had, or cannot be
// started from there; `nusa supervise` does the same.
func Argv(dir string) ([]string, error) { return argv(executable, dir) }

func argv(executable []byte, dir string) ([]string, error) {
	if len(executable) == 0 {
		return nil, fmt.Errorf("%s is not in this build", Name)
	}
	path := filepath.Join(dir, Name)
	if old, err := os.ReadFile(path); err != nil || !bytes.Equal(old, executable) {
		if err := write(path, executable); err != nil {
			return nil, err
		}
	}
	if err := os.Chmod(path, mode); err != nil { // an umask, or an earlier version
		return nil, err
	}
	// The folder may be one from which nothing can be started. By hand, with an
	// argument, it only says that it is not started so.
	err := exec.Command(path, "check").Run()
	if exit, ended := err.(*exec.ExitError); !ended || exit.ExitCode() != 2 {
		return nil, fmt.Errorf("start %s: %w", path, err)
	}
	return []string{path}, nil
}

// write replaces the file as a whole: older ones may be running.
func write(path string, data []byte) error {
	if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
		return err
	}
	next := path + ".new"
	err := os.WriteFile(next, data, mode)
	if err == nil {
		err = os.Rename(next, path)
	}
	if err != nil {
		os.Remove(next) // the disk may be full
	}
	return err
}
