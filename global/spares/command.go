package spares

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"github.com/nusa-scheduler/nusa/global/spares/step"
)

// outputMost bounds what is kept of a program's output, in bytes.
const outputMost = 4096

// tail keeps the end of what is written.
type tail struct{ text []byte }

func (t *tail) Write(p []byte) (int, error) {
	t.text = append(t.text, p...)
	if over := len(t.text) - outputMost; over > 0 {
		t.text = append(t.text[:0], t.text[over:]...)
	}
	return len(p), nil
}

// CheckPrograms checks the programs that a server allows.
func CheckPrograms(programs map[string]string) error {
	for name, path := range programs {
		switch {
		case !namePattern().MatchString(name):
			return fmt.Errorf("--spare-command %s: a name has lower-case letters, digits and hyphens, at most 63", name)
		case !filepath.IsAbs(path):
			return fmt.Errorf("--spare-command %s=%s: give an absolute path", name, path)
		}
	}
	return nil
}

// runProgram runs a program as a provisioner. It gets the request as JSON on standard input and in
// variables, and none of the variables of this process but PATH. Exit code 0 means that it has accepted.
func runProgram(ctx context.Context, path, name string, body provision, timeout time.Duration) step.Result {
	if path == "" {
		return step.Result{Err: fmt.Sprintf("the active global server does not allow the program %q: start it with --spare-command %s=PATH", name, name), Final: true}
	}
	run, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	cmd := exec.CommandContext(run, path)
	out := &tail{}
	cmd.Stdin, cmd.Stderr = bytes.NewReader(encodeJSON(body)), out
	cmd.Env = []string{"PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"}
	for _, v := range variables(body) {
		cmd.Env = append(cmd.Env, v[0]+"="+v[1])
	}
	// The whole group ends at the time-out, so that no child of the program outlives it.
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	cmd.Cancel = func() error { return syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL) }
	cmd.WaitDelay = time.Second
	err := cmd.Run()
	switch {
	case err == nil:
		return step.Result{}
	case errors.Is(run.Err(), context.DeadlineExceeded):
		return step.Result{Err: fmt.Sprintf("the program %s did not end within %s", name, timeout)}
	}
	text := fmt.Sprintf("the program %s: %s", name, err)
	if last := lastLine(string(out.text)); last != "" {
		text += ": " + last
	}
	return step.Result{Err: text}
}

// lastLine returns the last line of a text that is not empty, shortened.
func lastLine(text string) string {
	text = strings.TrimSpace(strings.ToValidUTF8(text, "\uFFFD"))
	if i := strings.LastIndexByte(text, '\n'); i >= 0 {
		text = text[i+1:]
	}
	if len(text) > 200 {
		text = strings.ToValidUTF8(text[:200], "") + "…"
	}
	return text
}
