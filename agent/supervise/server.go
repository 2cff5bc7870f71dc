package supervise

import (
	"bufio"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"os"
	"time"

	"github.com/nusa-scheduler/nusa/agent/driver"
)

// request is one line on the run's socket; a connection carries one request.
type request struct {
	// Op: "wait" answers when the run has ended; "stop" as wait, after asking it
	// to end; "renew" answers at once; "watch" answers an empty line when the
	// log has grown, and ends with the run.
	Op       string        `json:"op"`
	Grace    time.Duration `json:"grace,omitempty"`
	Deadline time.Duration `json:"deadline,omitempty"`
}

// reply is the answer, one line.
type reply struct {
	Status driver.Status `json:"status"`
	Error  string        `json:"error,omitempty"`
}

// maxClients bounds connections; the agent needs a few.
const maxClients = 64

// listen opens the run's socket in the current folder.
func listen() (net.Listener, error) {
	if err := os.Remove(socketFile); err != nil && !missing(err) {
		return nil, err
	}
	l, err := net.Listen("unix", socketFile)
	if err != nil {
		return nil, fmt.Errorf("socket of the run: %w", err)
	}
	return l, os.Chmod(socketFile, 0o600)
}

// serve answers until the listener is closed.
func (s *supervisor) serve(l net.Listener) {
	slots := make(chan struct{}, maxClients)
	for {
		conn, err := l.Accept()
		if err != nil {
			return
		}
		slots <- struct{}{}
		s.clients.Add(1)
		go func() {
			defer s.clients.Done()
			defer func() { <-slots }()
			defer conn.Close()
			s.handle(conn)
		}()
	}
}

func (s *supervisor) handle(conn net.Conn) {
	var req request
	in := bufio.NewReader(io.LimitReader(conn, 4096))
	line, err := in.ReadBytes('\n')
	if err != nil || json.Unmarshal(line, &req) != nil {
		return
	}
	switch req.Op {
	case "stop":
		select {
		case s.stops <- stopRequest{req.Grace}:
		case <-s.ended:
		}
		s.handleWait(conn)
	case "wait":
		s.handleWait(conn)
	case "renew":
		select {
		case s.renews <- req.Deadline:
			respond(conn, reply{})
		case <-s.ended:
			s.handleWait(conn)
		}
	case "watch":
		s.handleWatch(conn)
	default:
		respond(conn, reply{Error: fmt.Sprintf("unknown operation %q", req.Op)})
	}
}

// handleWait answers when the run has ended, or gives up with the client.
func (s *supervisor) handleWait(conn net.Conn) {
	gone := closed(conn)
	select {
	case <-s.ended:
		respond(conn, reply{Status: s.rec.Status})
	case <-gone:
	}
}

func (s *supervisor) handleWatch(conn net.Conn) {
	gone := closed(conn)
	for {
		// Take the channel before the announcement: what grows in between wakes
		// the next round.
		grown, more := s.grown.wait()
		if _, err := conn.Write([]byte("\n")); err != nil || !more {
			return
		}
		select {
		case <-grown:
		case <-gone:
			return
		}
	}
}

// closed is closed when the other side is; nothing more is read from it.
func closed(conn net.Conn) <-chan struct{} {
	gone := make(chan struct{})
	go func() {
		defer close(gone)
		_, _ = io.Copy(io.Discard, conn)
	}()
	return gone
}

func respond(conn net.Conn, r reply) {
	if line, err := json.Marshal(r); err == nil {
		_, _ = conn.Write(append(line, '\n'))
	}
}
