package broker

import (
	"context"
	"net"
	"net/netip"
	"testing"
	"time"

	"github.com/nusa-scheduler/nusa/internal/webhook"
)

// TestAServerThatNeverAnswers: a connection that is opened and then silent is given up when the context ends.
func TestAServerThatNeverAnswers(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = l.Close() })
	policy := &webhook.Policy{AllowHTTP: true, AllowPrivate: []netip.Prefix{netip.MustParsePrefix("127.0.0.0/8")}}
	for _, scheme := range []string{"nats", "tls", "amqp", "amqps"} {
		t.Run(scheme, func(t *testing.T) {
			t.Parallel()
			target, problems := NewTarget(Settings{URLs: []string{scheme + "://" + l.Addr().String()}, User: "u", Password: NewSecret("p")}, policy)
			if len(problems) > 0 {
				t.Fatal(problems)
			}
			ctx, cancel := context.WithTimeout(t.Context(), 300*time.Millisecond)
			defer cancel()
			began := time.Now()
			_, err := NewPublisher(ctx, target, Sink{Subject: "s", Exchange: "e"})
			if took := time.Since(began); err == nil || took > handshake/2 {
				t.Errorf("%v after %s", err, took)
			}
		})
	}
}
