package driver

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"runtime"

	"golang.org/x/sys/unix"
)

// startFault is the error of a file that cannot be started.
type startFault struct {
	text string
	err  error
}

func (f *startFault) Error() string { return f.text }
func (f *startFault) Unwrap() error { return f.err }

// StartFault returns the error of a start of a file in words: which file, what is wrong, and what to do. It
// wraps err. Without an error it returns nil.
func StartFault(path string, err error) error {
	if err == nil {
		return nil
	}
	say := func(format string, args ...any) error { return &startFault{fmt.Sprintf(format, args...), err} }
	switch {
	case errors.Is(err, exec.ErrNotFound):
		return say("no program %s in the PATH: install it on this node, or give its full path", path)
	case errors.Is(err, unix.ENOENT):
		if fi, e := os.Stat(path); e == nil && fi.Mode().IsRegular() {
			return say("%s needs another file that this node does not have: the interpreter in its first line, or the loader of a dynamic program", path)
		}
		return say("there is no file %s on this node: install it there, or correct the path", path)
	case errors.Is(err, unix.ENOTDIR):
		return say("there is no file %s on this node: a part of its path is no folder", path)
	case errors.Is(err, unix.EISDIR):
		return say("%s is a folder, not a program", path)
	case errors.Is(err, unix.EACCES), errors.Is(err, unix.EPERM):
		if fi, e := os.Stat(path); e == nil && fi.IsDir() {
			return say("%s is a folder, not a program", path)
		}
		return say("%s may not be executed by this user: set its permissions (chmod +x), and those of the folders above it", path)
	case errors.Is(err, unix.ENOEXEC):
		return say("%s is no program for this machine (%s): build it for that, or begin a script with a line such as #!/bin/sh", path, runtime.GOARCH)
	case errors.Is(err, unix.E2BIG):
		return say("the arguments and the environment of %s are too large for the kernel: put them into a file with templates", path)
	case errors.Is(err, unix.EAGAIN), errors.Is(err, unix.ENOMEM):
		return say("the node cannot start another process now (%v): it has too little memory, or too many processes", plain(err))
	}
	return say("%s cannot be started: %v", path, plain(err))
}

// plain returns the cause of an error about a file.
func plain(err error) error {
	var of *os.PathError
	if errors.As(err, &of) {
		return of.Err
	}
	return err
}
