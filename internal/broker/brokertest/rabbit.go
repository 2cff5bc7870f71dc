package brokertest

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/nusa-scheduler/nusa/internal/freeport"
)

// Rabbit is a RabbitMQ server. Its user is nusa.
type Rabbit struct {
	Process
	t testing.TB
}

// StartRabbit starts a server with an empty store. It takes some seconds. The test is skipped without
// rabbitmq-server.
func StartRabbit(t testing.TB) *Rabbit {
	t.Helper()
	bin := find(t, "RabbitMQ", "/usr/lib/rabbitmq/bin/rabbitmq-server") // the one in PATH runs as another user
	epmd := find(t, "RabbitMQ", "epmd")
	dir, port := t.TempDir(), freeport.Reserve(t, 3)
	for name, text := range map[string]string{
		"plugins": "[].\n",
		"rabbit.conf": fmt.Sprintf("listeners.tcp.1 = 127.0.0.1:%d\ndefault_user = nusa\ndefault_pass = %s\nlog.console = true\nlog.file = false\ndisk_free_limit.absolute = 1MB\n",
			port, Password),
	} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	names := &Process{
		t: t, name: "epmd", addr: fmt.Sprintf("127.0.0.1:%d", port+1), log: filepath.Join(dir, "epmd.log"),
		make: func() *exec.Cmd { return exec.Command(epmd, "-port", fmt.Sprint(port+1), "-address", "127.0.0.1") },
	}
	env := append(os.Environ(), "HOME="+dir, "RABBITMQ_NODENAME=nusa@localhost", "RABBITMQ_MNESIA_BASE="+filepath.Join(dir, "mnesia"),
		"RABBITMQ_LOG_BASE="+filepath.Join(dir, "log"), "RABBITMQ_LOGS=-", fmt.Sprintf("RABBITMQ_DIST_PORT=%d", port+2),
		"RABBITMQ_ENABLED_PLUGINS_FILE="+filepath.Join(dir, "plugins"), "RABBITMQ_CONFIG_FILE="+filepath.Join(dir, "rabbit.conf"),
		fmt.Sprintf("ERL_EPMD_PORT=%d", port+1), "RABBITMQ_PID_FILE="+filepath.Join(dir, "pid"), "RABBITMQ_CONF_ENV_FILE=/dev/null",
		"RABBITMQ_SERVER_ADDITIONAL_ERL_ARGS=+S 1:1 +sbwt none")
	r := &Rabbit{t: t, Process: Process{
		t: t, name: "rabbitmq-server", addr: fmt.Sprintf("127.0.0.1:%d", port), log: filepath.Join(dir, "rabbit.log"),
		make: func() *exec.Cmd {
			c := exec.Command(bin)
			c.Env = env
			return c
		},
	}}
	t.Cleanup(func() {
		r.Kill()
		names.Kill()
	})
	names.Start()
	r.Start()
	return r
}

// URL returns the address of the server.
func (r *Rabbit) URL() string { return "amqp://" + r.addr }

// Channel returns a channel until the test ends.
func (r *Rabbit) Channel() *amqp.Channel {
	r.t.Helper()
	conn, err := amqp.Dial(strings.Replace(r.URL(), "//", "//nusa:"+Password+"@", 1))
	if err != nil {
		r.t.Fatal(err)
	}
	r.t.Cleanup(func() { _ = conn.Close() })
	ch, err := conn.Channel()
	if err != nil {
		r.t.Fatal(err)
	}
	return ch
}

// Queue declares a durable queue that gets all messages of a topic exchange.
func (r *Rabbit) Queue(name, exchange string) {
	r.t.Helper()
	ch := r.Channel()
	if err := ch.ExchangeDeclare(exchange, amqp.ExchangeTopic, true, false, false, false, nil); err != nil {
		r.t.Fatal(err)
	}
	if _, err := ch.QueueDeclare(name, true, false, false, false, nil); err != nil {
		r.t.Fatal(err)
	}
	if err := ch.QueueBind(name, "#", exchange, false, nil); err != nil {
		r.t.Fatal(err)
	}
}

// Messages takes all messages out of a queue.
func (r *Rabbit) Messages(queue string) (out []Message) {
	r.t.Helper()
	ch := r.Channel()
	for {
		d, ok, err := ch.Get(queue, true)
		if err != nil {
			r.t.Fatal(err)
		}
		if !ok {
			return out
		}
		m := Message{ID: d.MessageId, Key: d.RoutingKey, Body: d.Body, Headers: map[string]string{"Content-Type": d.ContentType}}
		for k, v := range d.Headers {
			m.Headers[k] = fmt.Sprint(v)
		}
		out = append(out, m)
	}
}
