package slim

import (
	"bytes"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
)

// Name is the name of the file.
const Name = "nusa-supervise"

// mode is the mode of the file. Everybody may execute the file, because root of a container
// is not its owner. On the host the file is in a private folder.
const mode = 0o755

// Argv writes the executable into a folder, unless the folder already has it, and returns
// the command line of a supervisor. It returns an error if the build has no such
// executable, or if the executable cannot be started in that folder. In that case the
// caller uses `nusa supervise`.
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
	if err := os.Chmod(path, mode); err != nil { // the umask or an earlier version may have set another mode
		return nil, err
	}
	// The folder may be mounted with noexec, so try to start the executable. With an
	// argument it only prints that it must not be started by hand.
	err := exec.Command(path, "check").Run()
	if exit, ended := err.(*exec.ExitError); !ended || exit.ExitCode() != 2 {
		return nil, fmt.Errorf("start %s: %w", path, err)
	}
	return []string{path}, nil
}

// write replaces the file as a whole, because supervisors may be running the old file.
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
