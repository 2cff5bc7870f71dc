package report

import (
	"bytes"
	"context"
	"encoding/hex"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"slices"
	"strings"
	"syscall"
	"time"

	"google.golang.org/grpc/status"

	"github.com/nusa-scheduler/nusa/internal/network"
	"github.com/nusa-scheduler/nusa/internal/serve"
	nusav1 "github.com/nusa-scheduler/nusa/proto/nusa/v1"
)

// infoWithin bounds the first call to a running server.
const infoWithin = 5 * time.Second

// Server is the process of a measured server.
type Server struct {
	// Name is the name of the process in errors. Exe is the path of its program. Log is
	// the path of the file that gets its output.
	Name, Exe, Log string
	Args           []string
	cmd            *exec.Cmd
	exited         chan struct{} // closed when the process has ended
}

// Start starts the process. The output of the process is appended to the log.
func (s *Server) Start() error {
	log, err := os.OpenFile(s.Log, os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o600)
	if err != nil {
		return err
	}
	defer log.Close()
	cmd := Process(s.Exe, s.Args...)
	cmd.Stdout, cmd.Stderr = log, log
	if err := cmd.Start(); err != nil {
		return fmt.Errorf("start %s: %w", s.Name, err)
	}
	exited := make(chan struct{})
	s.cmd, s.exited = cmd, exited
	go func() {
		defer close(exited)
		_ = cmd.Wait() // the log says why the process ended
	}()
	return nil
}

// Plain is the environment variable of a global server that begins a federation without identities.
const Plain = "NUSA_INSECURE=true"

// Process returns a command without the NUSA_ variables of the operator. The command is in
// its own process group, so that Ctrl-C does not stop it directly. The kernel kills the
// command when this process ends. The servers of a measurement have no identities. Older programs
// do not know the variable that says so.
func Process(exe string, args ...string) *exec.Cmd {
	cmd := exec.Command(exe, args...)
	cmd.Env = slices.DeleteFunc(os.Environ(), func(v string) bool { return strings.HasPrefix(v, "NUSA_") })
	cmd.Env = append(cmd.Env, Plain)
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL}
	return cmd
}

// PID returns the process id.
func (s *Server) PID() int { return s.cmd.Process.Pid }

// Signal sends a signal to the process, for example the signal that begins a profile.
func (s *Server) Signal(sig syscall.Signal) { _ = s.cmd.Process.Signal(sig) }

// Kill ends the process with SIGKILL and waits for the end.
func (s *Server) Kill() {
	_ = s.cmd.Process.Kill()
	<-s.exited
}

// Stop ends a started process with SIGTERM, and with SIGKILL after StopWithin.
func (s *Server) Stop() {
	if s.cmd == nil {
		return
	}
	s.Signal(syscall.SIGTERM)
	late := time.NewTimer(StopWithin)
	defer late.Stop()
	select {
	case <-s.exited:
	case <-late.C:
		s.Kill()
	}
}

// Died returns an error with the last line of the log if the process has ended. It returns
// nil while the process runs.
func (s *Server) Died() error {
	select {
	case <-s.exited:
	default:
		return nil
	}
	why := "its log is empty"
	if data, err := os.ReadFile(s.Log); err == nil && len(bytes.TrimSpace(data)) > 0 {
		lines := strings.Split(string(bytes.TrimSpace(data)), "\n")
		why = lines[len(lines)-1]
	}
	return fmt.Errorf("%s has ended: %s", s.Name, why)
}

// Ask returns the description of the running server that --against names. It returns an
// error if the server does not have the role.
func Ask(ctx context.Context, addr, role string) (*nusav1.InfoResponse, error) {
	conn, err := serve.Dial(network.Host(), addr)
	if err != nil {
		return nil, err
	}
	defer conn.Close()
	ctx, cancel := context.WithTimeout(ctx, infoWithin)
	defer cancel()
	info, err := nusav1.NewSystemClient(conn).Info(ctx, &nusav1.InfoRequest{})
	if err != nil {
		why := status.Convert(err).Message()
		return nil, fmt.Errorf("--against %s: no %s server answers there: %s", addr, role, strings.Trim(why[strings.LastIndex(why, ": ")+1:], " \""))
	}
	if info.GetRole() != role {
		return nil, fmt.Errorf("--against %s: is a %s server, not a %s server", addr, info.GetRole(), role)
	}
	return info, nil
}

// RandomName returns a random part of a name. Two measurements hardly ever get the same.
func RandomName() string {
	b := make([]byte, 4)
	for i := range b {
		b[i] = byte(rand.IntN(256))
	}
	return hex.EncodeToString(b)
}
