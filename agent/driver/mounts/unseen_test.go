package mounts

import (
	"bufio"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/nusa-scheduler/nusa/agent/driver/drivertest/leftover"
)

// TestMain lets the test's own executable be a process that listens at a socket.
func TestMain(m *testing.M) {
	path := os.Getenv("NUSA_TEST_LISTEN")
	if path == "" {
		os.Exit(leftover.M{M: m}.Run())
	}
	l, err := net.Listen("unix", path)
	if err != nil {
		os.Exit(1)
	}
	os.Stdout.WriteString("ready\n")
	_, _ = os.Stdin.Read(make([]byte, 1)) // until the test closes the input
	l.Close()
}

// listening starts a process that listens at a socket.
func listening(t *testing.T, attr *syscall.SysProcAttr) (socket string) {
	t.Helper()
	socket = filepath.Join(t.TempDir(), "s")
	cmd := exec.Command(os.Args[0])
	cmd.Env, cmd.SysProcAttr = append(os.Environ(), "NUSA_TEST_LISTEN="+socket), attr
	in, err := cmd.StdinPipe()
	must(t, err)
	out, err := cmd.StdoutPipe()
	must(t, err)
	must(t, cmd.Start())
	t.Cleanup(func() { in.Close(); _ = cmd.Wait() })
	if line, err := bufio.NewReader(out).ReadString('\n'); line != "ready\n" {
		t.Fatalf("%q, %v", line, err)
	}
	return socket
}

// TestUnseen: a process that shares the mount namespace sees new mounts. A process with a copied
// namespace does not see them, although its copy contains the mount folder.
func TestUnseen(t *testing.T) {
	if err := Usable(); err != nil {
		t.Skip("needs root: ", err)
	}
	s := NewFolder(t.TempDir())
	t.Cleanup(s.Close)
	must(t, s.ready())
	with, unshared := listening(t, nil), listening(t, &syscall.SysProcAttr{Unshareflags: syscall.CLONE_NEWNS})
	for range 2 { // the first round must leave no probe for the second one
		if why := s.Unseen(with); why != "" {
			t.Errorf("one that shares them: %s", why)
		}
		if why := s.Unseen(unshared); !strings.Contains(why, "does not see what the agent mounts below /run/nusa") {
			t.Errorf("one with its own: %q", why)
		}
	}
	if why := s.Unseen(filepath.Join(t.TempDir(), "none")); why != "" {
		t.Errorf("where nobody listens: %s", why)
	}
	if left, err := os.ReadDir(s.dir); len(left) != 0 || err != nil {
		t.Errorf("left are %v %v", left, err)
	}
}
