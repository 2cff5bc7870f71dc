package trust

import (
	"bytes"
	"fmt"
	"log/slog"
	"net"
	"strings"
	"testing"
	"time"

	"github.com/nusa-scheduler/nusa/security/identity"
	"github.com/nusa-scheduler/nusa/security/pki"
)

// TestRefusalsAreBoundedByReason: a flood of one reason has five lines a second, and does not hide
// another reason.
func TestRefusalsAreBoundedByReason(t *testing.T) {
	var logged bytes.Buffer
	now := time.Unix(1000, 0)
	s := &Source{opts: Options{Now: func() time.Time { return now }, Logger: slog.New(slog.NewTextHandler(&logged, nil))}}
	refuse := func(err error, times int) {
		for range times {
			s.refuse(&net.TCPAddr{}, fmt.Errorf("%w: the peer", err))
		}
	}
	for _, c := range []struct {
		at   time.Duration
		err  error
		n    int
		want int // lines
		text string
	}{
		{0, identity.ErrNotExpected, 20, 5, "others=0"},
		{0, pki.ErrExpired, 1, 1, "others=15"},
		{999 * time.Millisecond, identity.ErrNotExpected, 3, 0, ""},
		{time.Second, identity.ErrNotExpected, 6, 5, "others=3"},
		{time.Second, net.ErrWriteToConnected, 6, 5, "others=1"},
		{time.Second, net.ErrClosed, 6, 0, ""},
		{-time.Hour, pki.ErrExpired, 6, 5, "others=1"}, // the clock was set back
	} {
		logged.Reset()
		now = time.Unix(1000, 0).Add(c.at)
		refuse(c.err, c.n)
		if got := strings.Count(logged.String(), "\n"); got != c.want || !strings.Contains(logged.String(), c.text) {
			t.Errorf("after %s, %d times %v: %d lines, want %d with %q:\n%s", c.at, c.n, c.err, got, c.want, c.text, logged.String())
		}
	}
	if got := fmt.Sprint(s.Refused()); got != fmt.Sprint(map[string]int{identity.ErrNotExpected.Error(): 29, pki.ErrExpired.Error(): 7, "other": 6}) {
		t.Errorf("counted are %s", got)
	}
}
