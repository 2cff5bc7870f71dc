package brokertest

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/nusa-scheduler/nusa/internal/freeport"
)

// NATS is a NATS server with JetStream. Its user is nusa.
type NATS struct {
	Process
	t testing.TB
}

// Password is the password of the user nusa of all brokers.
const Password = "ferry-lantern-42"

// StartNATS starts a server with an empty store. The test is skipped without nats-server.
func StartNATS(t testing.TB) *NATS {
	t.Helper()
	bin := find(t, "NATS", "nats-server", "/usr/sbin/nats-server")
	dir, port := t.TempDir(), freeport.Reserve(t, 1)
	config := filepath.Join(dir, "nats.conf")
	text := fmt.Sprintf("listen: \"127.0.0.1:%d\"\njetstream { store_dir: %q, max_mem: 64MB, max_file: 256MB }\nauthorization { user: nusa, password: %q }\n", port, filepath.Join(dir, "store"), Password)
	if err := os.WriteFile(config, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	n := &NATS{t: t, Process: Process{
		t: t, name: "nats-server", addr: fmt.Sprintf("127.0.0.1:%d", port), log: filepath.Join(dir, "log"),
		make: func() *exec.Cmd { return exec.Command(bin, "-c", config) },
	}}
	t.Cleanup(n.Kill)
	n.Start()
	return n
}

// URL returns the address of the server.
func (n *NATS) URL() string { return "nats://" + n.addr }

// Connect connects to the server until the test ends.
func (n *NATS) Connect() jetstream.JetStream {
	n.t.Helper()
	conn, err := nats.Connect(n.URL(), nats.UserInfo("nusa", Password), nats.RetryOnFailedConnect(true))
	if err != nil {
		n.t.Fatal(err)
	}
	n.t.Cleanup(conn.Close)
	js, err := jetstream.New(conn)
	if err != nil {
		n.t.Fatal(err)
	}
	return js
}

// Stream adds a stream with some subjects.
func (n *NATS) Stream(name string, subjects ...string) {
	n.t.Helper()
	ctx, cancel := context.WithTimeout(n.t.Context(), patience)
	defer cancel()
	_, err := n.Connect().CreateStream(ctx, jetstream.StreamConfig{Name: name, Subjects: subjects, Storage: jetstream.FileStorage})
	if err != nil {
		n.t.Fatal(err)
	}
}

// Message is what a broker has.
type Message struct {
	ID, Key string
	Headers map[string]string
	Body    []byte
}

// Messages returns all messages of a stream, in order.
func (n *NATS) Messages(stream string) (out []Message) {
	n.t.Helper()
	ctx, cancel := context.WithTimeout(n.t.Context(), patience)
	defer cancel()
	js := n.Connect()
	defer js.Conn().Close()
	s, err := js.Stream(ctx, stream)
	if err != nil {
		n.t.Fatal(err)
	}
	info, err := s.Info(ctx)
	if err != nil {
		n.t.Fatal(err)
	}
	for at := info.State.FirstSeq; at <= info.State.LastSeq; at++ {
		m, err := s.GetMsg(ctx, at)
		if err != nil {
			n.t.Fatal(err)
		}
		one := Message{ID: m.Header.Get(nats.MsgIdHdr), Key: m.Subject, Body: m.Data, Headers: map[string]string{}}
		for k := range m.Header {
			one.Headers[k] = m.Header.Get(k)
		}
		out = append(out, one)
	}
	return out
}
