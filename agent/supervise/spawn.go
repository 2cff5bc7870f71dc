package supervise

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"sync"
	"syscall"
	"time"

	"github.com/nusa-scheduler/nusa/agent/driver"
)

// Spawner starts supervisors. It holds one spare process that waits for a run, because the
// start of a large executable takes most of the time to start a supervisor. A Spawner is
// safe for concurrent use.
type Spawner struct {
	argv []string

	mu     sync.Mutex
	spare  *process
	closed bool
}

// NewSpawner returns a spawner that starts supervisors with the command line argv. The
// spare is made after the first Spawn, so a host without tasks has no spare process.
func NewSpawner(argv []string) *Spawner { return &Spawner{argv: argv} }

// process is a supervisor that waits for its run.
type process struct {
	os    *os.Process
	in    io.WriteCloser // gets the folder of the run
	ready *os.File       // delivers the one reply of the process
}

// launch starts a process. The process ends when its input is closed, which also happens
// when the agent is killed.
func (s *Spawner) launch() (*process, error) {
	r, w, err := os.Pipe()
	if err != nil {
		return nil, err
	}
	defer w.Close()
	in, folder, err := os.Pipe()
	if err != nil {
		r.Close()
		return nil, err
	}
	defer in.Close()
	cmd := exec.Command(s.argv[0], s.argv[1:]...)
	cmd.Stdin = in
	cmd.ExtraFiles = []*os.File{w} // readyFD
	// A host may run thousands of supervisors. One processor is enough for a supervisor,
	// and GOMAXPROCS=1 saves threads.
	cmd.Env = []string{"GOGC=50", "GOMAXPROCS=1"}
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	if err := cmd.Start(); err != nil {
		r.Close()
		folder.Close()
		return nil, fmt.Errorf("start a supervisor: %w", err)
	}
	return &process{os: cmd.Process, in: folder, ready: r}, nil
}

// next returns the spare process, or a new process if there is no spare.
func (s *Spawner) next() (p *process, spare bool, err error) {
	s.mu.Lock()
	p, s.spare = s.spare, nil
	s.mu.Unlock()
	if p != nil {
		return p, true, nil
	}
	p, err = s.launch()
	return p, false, err
}

// refill makes a spare process if there is none.
func (s *Spawner) refill() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.spare != nil || s.closed {
		return
	}
	if p, err := s.launch(); err == nil { // on an error the next Spawn tries again
		s.spare = p
	}
}

// Close ends the spare process. Supervisors of runs continue.
func (s *Spawner) Close() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.closed = true
	if s.spare != nil {
		s.spare.discard()
		s.spare = nil
	}
}

func (p *process) discard() {
	p.in.Close()
	p.ready.Close()
	_, _ = p.os.Wait()
}

// Spawn starts a supervisor for the run in dir. It returns when the command is running or
// could not be started. After the run has ended, the caller must wait for the returned
// process. Two calls for one folder start the command only once.
func (s *Spawner) Spawn(ctx context.Context, dir string) (*os.Process, driver.Status, error) {
	p, spare, err := s.next()
	if err != nil {
		return nil, driver.Status{}, err
	}
	rep, err := p.assign(ctx, dir)
	if spare && err != nil && ctx.Err() == nil {
		// The spare may have been killed. It is safe to start a second process, because a
		// run starts at most once.
		p.discard()
		p, err = s.launch()
		if err != nil {
			return nil, driver.Status{}, err
		}
		rep, err = p.assign(ctx, dir)
	}
	p.ready.Close()
	switch {
	case err != nil && ctx.Err() != nil:
		return p.os, driver.Status{}, fmt.Errorf("the supervisor did not reply: %w", ctx.Err())
	case err != nil:
		_, _ = p.os.Wait()
		return nil, driver.Status{}, fmt.Errorf("the supervisor ended without a reply, see %s/%s: %w", dir, logFile, err)
	case rep.Error != "":
		_, _ = p.os.Wait()
		if rep.Error == ErrSupervised.Error() {
			return nil, driver.Status{}, ErrSupervised
		}
		return nil, driver.Status{}, errors.New(rep.Error)
	}
	s.refill()
	return p.os, rep.Status, nil
}

// assign gives a run to a waiting process and reads the reply.
func (p *process) assign(ctx context.Context, dir string) (reply, error) {
	_, err := io.WriteString(p.in, dir+"\n")
	err = errors.Join(err, p.in.Close())
	if err != nil {
		return reply{}, err
	}
	unblock := context.AfterFunc(ctx, func() { _ = p.ready.SetReadDeadline(time.Unix(1, 0)) })
	defer unblock()
	line, err := bufio.NewReader(p.ready).ReadBytes('\n')
	if err != nil {
		return reply{}, err
	}
	var rep reply
	return rep, json.Unmarshal(line, &rep)
}
