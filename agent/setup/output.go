package setup

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"syscall"
	"unicode/utf8"

	"github.com/nusa-scheduler/nusa/agent/driver"
)

// OutputFile is the file in a task's folder with the task's output for later steps of its workflow.
const OutputFile = "nusa-output"

// MaxOutput bounds an output, in bytes.
const MaxOutput = 16 << 10

// Output reads the output of a task that has ended. It is empty if the task wrote none. The error says why
// the output cannot be used.
func (s *Setup) Output(alloc, task string) (string, error) {
	text, err := s.output(alloc, task)
	if err != nil {
		return "", fmt.Errorf("the output in $NUSA_OUTPUT %w", err)
	}
	return text, nil
}

func (s *Setup) output(alloc, task string) (string, error) {
	root, err := os.OpenRoot(s.TaskDir(alloc, task)) // the task may have left links there
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return "", nil
	case err != nil:
		return "", fmt.Errorf("cannot be read: %w", plain(err))
	}
	defer root.Close()
	fi, err := root.Lstat(OutputFile)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return "", nil
	case err != nil:
		return "", fmt.Errorf("cannot be read: %w", plain(err))
	case !fi.Mode().IsRegular():
		return "", errors.New("is not a plain file")
	}
	f, err := root.OpenFile(OutputFile, os.O_RDONLY|syscall.O_NONBLOCK, 0) // a pipe that replaced it must not block
	if err != nil {
		return "", fmt.Errorf("cannot be read: %w", plain(err))
	}
	defer f.Close()
	if now, err := f.Stat(); err != nil || !os.SameFile(fi, now) {
		return "", errors.New("is not a plain file")
	}
	data, err := io.ReadAll(io.LimitReader(f, MaxOutput+1))
	switch {
	case err != nil:
		return "", fmt.Errorf("cannot be read: %w", plain(err))
	case len(data) > MaxOutput:
		return "", fmt.Errorf("has more than %d bytes", MaxOutput)
	case !utf8.Valid(data):
		return "", errors.New("is not UTF-8 text")
	}
	return string(data), nil
}

// RemoveOutput removes what an earlier run of a task wrote.
func (s *Setup) RemoveOutput(alloc, task string) error {
	root, err := os.OpenRoot(s.TaskDir(alloc, task))
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err == nil {
		err = root.RemoveAll(OutputFile)
		root.Close()
	}
	if err != nil {
		return fmt.Errorf("%w: its earlier output cannot be removed: %w", driver.ErrStart, plain(err))
	}
	return nil
}
