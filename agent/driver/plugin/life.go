package plugin

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"syscall"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/backoff"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"

	"github.com/nusa-scheduler/nusa/agent/driver"
	nusav1 "github.com/nusa-scheduler/nusa/proto/nusa/v1"
)

const (
	// drain bounds the reading of output after the process has ended, because the children
	// of the process may hold the pipe open.
	drain = 200 * time.Millisecond
)

// life is one process of a plugin and the connection to it.
type life struct {
	name    string
	client  nusav1.DriverClient
	conn    *grpc.ClientConn
	process *os.Process
	stdin   io.Closer
	lines   *lines
	dir     string // the folder of the plugin's socket
	link    string // If sockets is too long for a socket, link is a link to dir, else "". A later agent finds dir by the link if this agent is killed.
	// lacks are the capabilities that the plugin reports but does not have.
	lacks []string
	// gone is closed when the process has ended. After that, end says how the process
	// ended.
	gone chan struct{}
	end  string
}

// begin starts a process and makes the handshake. If either fails, begin returns an error,
// and no process is left. sockets is the parent of the folder of the socket.
func begin(ctx context.Context, cfg Config, sockets string, limits limits) (*life, error) {
	l := &life{name: cfg.Name, lines: newLines(cfg.Logger), gone: make(chan struct{})}
	if err := l.makeDir(sockets); err != nil {
		return nil, err
	}
	socket := filepath.Join(l.dir, socketName)
	err := l.start(cfg, socket)
	if err != nil {
		l.removeDir()
		return nil, err
	}
	l.conn, err = connect(socket)
	if err == nil {
		l.client = nusav1.NewDriverClient(l.conn)
		err = l.greet(ctx, cfg, limits)
	}
	if err != nil {
		l.finish(limits.stop)
		return nil, err
	}
	return l, nil
}

// connect dials a socket that may not exist yet.
func connect(socket string) (*grpc.ClientConn, error) {
	pace := backoff.Config{BaseDelay: 2 * time.Millisecond, Multiplier: 1.5, Jitter: 0.2, MaxDelay: 100 * time.Millisecond}
	return grpc.NewClient("passthrough:///plugin",
		grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithContextDialer(func(ctx context.Context, _ string) (net.Conn, error) {
			return (&net.Dialer{}).DialContext(ctx, "unix", socket)
		}),
		grpc.WithConnectParams(grpc.ConnectParams{Backoff: pace, MinConnectTimeout: time.Second}),
		grpc.WithIdleTimeout(0), grpc.WithDisableRetry(), grpc.WithMaxHeaderListSize(64<<10),
		grpc.WithDefaultCallOptions(grpc.MaxCallRecvMsgSize(maxMessageBytes), grpc.MaxCallSendMsgSize(2*maxMessageBytes)))
}

// start starts the process. It removes the agent's NUSA_ variables from the environment of
// the process, because they may hold secrets.
func (l *life) start(cfg Config, socket string) error {
	cmd := exec.Command(cfg.Path, cfg.Args...)
	cmd.Dir = cfg.data()
	for _, kv := range os.Environ() {
		if !strings.HasPrefix(kv, "NUSA_") {
			cmd.Env = append(cmd.Env, kv)
		}
	}
	cmd.Env = append(cmd.Env, envSocket+"="+socket, envDir+"="+cmd.Dir, envName+"="+cfg.Name)
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL}
	stdin, err := cmd.StdinPipe()
	if err != nil {
		return err
	}
	r, w, err := os.Pipe()
	if err != nil {
		stdin.Close()
		return err
	}
	l.stdin, cmd.Stdout, cmd.Stderr = stdin, w, w
	started := make(chan error, 1)
	go func() {
		defer close(l.gone)
		// Pdeathsig kills the child when the thread that started the child ends, so this
		// goroutine keeps its thread.
		runtime.LockOSThread()
		defer runtime.UnlockOSThread()
		defer r.Close()
		err := driver.StartFault(cfg.Path, cmd.Start())
		w.Close()
		l.process = cmd.Process
		started <- err
		if err != nil {
			stdin.Close()
			return
		}
		read := make(chan struct{})
		go func() {
			defer close(read)
			l.lines.read(r)
		}()
		_ = cmd.Wait()
		_ = r.SetReadDeadline(time.Now().Add(drain))
		<-read
		l.end = "it ended with " + strings.Replace(cmd.ProcessState.String(), "exit status", "exit code", 1)
	}()
	return <-started
}

// greet makes the handshake and checks that the plugin follows the contract.
func (l *life) greet(ctx context.Context, cfg Config, limits limits) error {
	ctx, cancel := context.WithTimeout(ctx, limits.launch)
	defer cancel()
	go func() {
		select {
		case <-l.gone:
			cancel()
		case <-ctx.Done():
		}
	}()
	r, err := l.client.Handshake(ctx, &nusav1.HandshakeRequest{Oldest: Oldest, Newest: Newest, Name: cfg.Name, AgentVersion: cfg.AgentVersion}, grpc.WaitForReady(true))
	if err != nil {
		select {
		case <-l.gone:
			return errors.New(l.ended())
		default:
		}
		if ctx.Err() != nil {
			return fmt.Errorf("it did not respond to the handshake within %s", limits.launch)
		}
		return fmt.Errorf("handshake: %s", clip(status.Convert(err).Message(), maxMessage))
	}
	if err := checkHandshake(cfg.Name, r); err != nil {
		return err
	}
	quick, cancel := context.WithTimeout(ctx, limits.quick)
	defer cancel()
	return l.probe(quick)
}

// ended says how the process ended, with its last line. Call ended only after gone is
// closed.
func (l *life) ended() string {
	if line := l.lines.end(); line != "" {
		return l.end + ": " + line
	}
	return l.end
}

// never is the id of a run that does not exist.
var never = &nusav1.RunID{Alloc: "00000000-0000-0000-0000-000000000000", Task: "never", Run: 1}

// probe checks two rules of the contract. The plugin must not report a status for a run
// that does not exist, because the agent would then adopt a run that is not running. The
// plugin must have the capabilities that it reports.
func (l *life) probe(ctx context.Context) error {
	if st, err := l.client.Status(ctx, &nusav1.RunRequest{Id: never}); err == nil {
		return fmt.Errorf("%w: Status: it returns %s for a run that does not exist", driver.ErrContract, strings.ToLower(st.GetState().String()))
	}
	f, err := l.client.Fingerprint(ctx, &nusav1.FingerprintRequest{})
	if err != nil {
		return nil // the driver asks for the fingerprint again later
	}
	for _, c := range f.GetCapabilities() {
		var err error
		switch c {
		case driver.CapStats:
			_, err = l.client.Stats(ctx, &nusav1.RunRequest{Id: never})
		case driver.CapUpdate:
			_, err = l.client.Update(ctx, &nusav1.UpdateRunRequest{Id: never, Limits: &nusav1.RunLimits{}})
		case driver.CapSignal:
			_, err = l.client.Signal(ctx, &nusav1.SignalRunRequest{Id: never, Signal: 1})
		case driver.CapSelfFencing:
			_, err = l.client.Renew(ctx, &nusav1.RenewRunRequest{Id: never})
		case driver.CapExec:
			err = l.probeExec(ctx)
		}
		if status.Code(err) == codes.Unimplemented {
			l.lacks = append(l.lacks, c)
		}
	}
	return nil
}

func (l *life) probeExec(ctx context.Context) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	s, err := l.client.Exec(ctx)
	if err != nil {
		return err
	}
	if err := s.Send(&nusav1.RunExecRequest{Start: &nusav1.RunExecRequest_Start{Id: never, Command: []string{"true"}}}); err != nil && !errors.Is(err, io.EOF) {
		return err
	}
	_, err = s.Recv()
	return err
}

// finish asks the process to end, and kills it after the grace. The runs of the plugin
// continue.
func (l *life) finish(grace time.Duration) {
	l.stdin.Close()
	t := time.NewTimer(grace)
	defer t.Stop()
	select {
	case <-l.gone:
	case <-t.C:
		_ = l.process.Kill()
		<-l.gone
	}
	l.close()
}

// close closes the connection and removes the folder of a process that has ended.
func (l *life) close() {
	if l.conn != nil {
		_ = l.conn.Close()
	}
	l.removeDir()
}
