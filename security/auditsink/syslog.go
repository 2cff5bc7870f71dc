package auditsink

import (
	"fmt"
	"net"
	"os"
	"strconv"
	"strings"
	"time"
)

const (
	// priority is the facility "log audit" (13) with the severity "informational" (6).
	priority = 13*8 + 6
	// syslogTimeout bounds a connection and a write.
	syslogTimeout = 5 * time.Second
)

// syslogAddress returns the network and the address of a syslog server.
func syslogAddress(text string) (network, address string, err error) {
	if path, ok := strings.CutPrefix(text, "unix:"); ok && path != "" {
		return "unix", path, nil
	}
	host, port, err := net.SplitHostPort(text)
	if err != nil || host == "" || port == "" {
		return "", "", fmt.Errorf("%q is neither unix:PATH nor HOST:PORT", text)
	}
	return "tcp", text, nil
}

// syslog is a connection to a syslog server.
type syslog struct {
	address string
	conn    net.Conn
	framed  bool // the connection is a stream, so each message has its length
}

// send sends entries. If it fails in the middle, the first ones are sent again with the next call.
func (s *syslog) send(host string, some []queued) error {
	if s.address == "" {
		return nil
	}
	if s.conn == nil {
		if err := s.connect(); err != nil {
			return fmt.Errorf("syslog at %s: %w", s.address, err)
		}
	}
	for _, q := range some {
		text := message(host, q)
		if s.framed {
			text = strconv.Itoa(len(text)) + " " + text // RFC 6587, 3.4.1
		}
		_ = s.conn.SetWriteDeadline(time.Now().Add(syslogTimeout)) // the write fails if this does
		if _, err := s.conn.Write([]byte(text)); err != nil {
			s.close()
			return fmt.Errorf("syslog at %s: %w", s.address, err)
		}
	}
	return nil
}

func (s *syslog) connect() (err error) {
	network, address, err := syslogAddress(s.address)
	if err != nil {
		return err
	}
	if network == "unix" { // most are for datagrams
		s.conn, err = net.DialTimeout("unixgram", address, syslogTimeout)
		if err == nil {
			s.framed = false
			return nil
		}
	}
	s.conn, err = net.DialTimeout(network, address, syslogTimeout)
	s.framed = err == nil
	return err
}

func (s *syslog) close() {
	if s.conn != nil {
		_ = s.conn.Close() // each write was checked
		s.conn = nil
	}
}

// message returns an entry as a message of RFC 5424. The entry itself is JSON.
func message(host string, q queued) string {
	name := strings.Map(func(r rune) rune {
		if r <= ' ' || r > '~' {
			return '-'
		}
		return r
	}, host)
	if name == "" {
		name = "-"
	}
	return fmt.Sprintf("<%d>1 %s %.255s nusa %d audit - %s", priority, q.entry.Time.UTC().Format("2006-01-02T15:04:05.000000Z"), name, os.Getpid(),
		strings.TrimSuffix(string(jsonOf(q)), "\n"))
}
