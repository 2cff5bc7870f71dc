package federation

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"syscall"
	"time"

	"github.com/nusa-scheduler/nusa/bench/report"
	"github.com/nusa-scheduler/nusa/internal/network"
	"github.com/nusa-scheduler/nusa/internal/serve"
	nusav1 "github.com/nusa-scheduler/nusa/proto/nusa/v1"
)

const (
	// activeWithin bounds the time in which a server becomes the active one.
	activeWithin = 5 * time.Minute
	// callWithin bounds one call that asks whether the server is active.
	callWithin = time.Second
)

// server is the process of the measured global server, or of the bare parts.
type server struct {
	report.Server
	dir, addr, etcd string // addr: gRPC
	// profile is the prefix of the files with the server's profiles. command has the arguments
	// of the server, without the flags for profiles.
	profile string
	command []string
}

// startServer starts a global server, or the bare parts, with its data in a new folder.
func startServer(o Options, exe string, bare bool) (*server, error) {
	dir, err := os.MkdirTemp(o.Dir, "nusa-bench-")
	if err != nil {
		return nil, fmt.Errorf("--dir: %w", err)
	}
	s := &server{dir: dir, Server: report.Server{Name: "the global server", Exe: exe, Log: filepath.Join(dir, "log")}}
	ports, err := report.FreePorts(3)
	if err != nil {
		return nil, s.failed(err)
	}
	addr := func(k int) string { return fmt.Sprintf("127.0.0.1:%d", ports[k]) }
	s.addr, s.etcd = addr(0), addr(1)
	data := filepath.Join(dir, "data")
	s.command = []string{
		"global", "--name", "g1", "--data-dir", data, "--grpc-addr", addr(0), "--http-addr", "-",
		"--etcd-client-addr", addr(1), "--etcd-peer-addr", addr(2), "--log-level", "error",
	}
	if bare {
		s.Name = "the process of the bare parts"
		s.command = []string{"bench", "federation-parts", data, "--grpc-addr", addr(0), "--etcd-peer-addr", addr(2)}
	}
	s.Args = s.command
	if o.Profile != "" {
		s.profiledTo(filepath.Join(o.Profile, "global"))
	}
	if err := s.Start(); err != nil {
		return nil, s.failed(err)
	}
	return s, nil
}

// profiledTo makes the next process write profiles to files with a prefix.
func (s *server) profiledTo(prefix string, flags ...string) {
	_ = os.Remove(prefix + ".heap") // remove the file of an earlier run, because the new file says that the profiles are complete
	s.profile, s.Args = prefix, slices.Concat([]string{"bench", "profiled"}, flags, []string{prefix, "--"}, s.command)
}

// failed removes the folder of a server that did not start, and returns the error.
func (s *server) failed(err error) error {
	_ = os.RemoveAll(s.dir)
	return err
}

// close ends the process and removes the folder.
func (s *server) close() {
	s.Stop()
	_ = os.RemoveAll(s.dir)
}

// awaitActive waits until the server is the active global server.
func (s *server) awaitActive(ctx context.Context) error {
	ctx, cancel := report.Within(ctx, activeWithin, fmt.Errorf("%s was not active within %s", s.Name, activeWithin))
	defer cancel()
	for {
		if s.active(ctx) {
			return nil
		}
		if err := s.Died(); err != nil {
			return err
		}
		if err := report.Pause(ctx, report.PollEvery); err != nil {
			return err
		}
	}
}

// active reports whether the server is the active global server. Each call uses a new
// connection, because a connection that has failed waits before it dials again.
func (s *server) active(ctx context.Context) bool {
	conn, err := serve.Dial(network.Host(), s.addr)
	if err != nil {
		return false
	}
	defer conn.Close()
	ctx, cancel := context.WithTimeout(ctx, callWithin)
	defer cancel()
	info, err := nusav1.NewSystemClient(conn).Info(ctx, &nusav1.InfoRequest{})
	return err == nil && info.GetLeader()
}

// Global is a global server that another measurement starts.
type Global struct{ s *server }

// StartGlobal starts a global server, and waits until it is the active one. It uses the options Dir, Profile and
// Executable.
func StartGlobal(ctx context.Context, o Options) (*Global, error) {
	if o.Profile != "" {
		if err := os.MkdirAll(o.Profile, 0o700); err != nil {
			return nil, fmt.Errorf("--profile: %w", err)
		}
	}
	s, err := startServer(o, o.Executable, false)
	if err != nil {
		return nil, err
	}
	if err := s.awaitActive(ctx); err != nil {
		s.close()
		return nil, err
	}
	return &Global{s}, nil
}

// Addr returns the server's gRPC address.
func (g *Global) Addr() string { return g.s.addr }

// Etcd returns the client address of the server's etcd.
func (g *Global) Etcd() string { return g.s.etcd }

// PID returns the number of the server's process.
func (g *Global) PID() int { return g.s.PID() }

// Profile writes profiles of the server from now on, until the returned function is called. It does nothing
// without Options.Profile.
func (g *Global) Profile() (end func(context.Context) error) {
	m := &measurement{o: Options{Profile: filepath.Dir(g.s.profile)}, server: g.s}
	if g.s.profile == "" {
		return func(context.Context) error { return nil }
	}
	m.signal(syscall.SIGUSR1)
	return func(ctx context.Context) error {
		m.signal(syscall.SIGUSR2)
		return m.profiled(ctx)
	}
}

// Close ends the server and removes its data.
func (g *Global) Close() { g.s.close() }
