package agent

import (
	"bufio"
	"context"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"
)

// TestShrink: memory is given back 2 s after the latest change, and then once a
// minute until the next one.
func TestShrink(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		e := &engine{changed: newPulse()}
		began, done := time.Now(), make(chan error)
		var got []time.Duration
		go func() { done <- e.shrink(ctx, func() { got = append(got, time.Since(began)) }) }()
		for _, at := range []time.Duration{time.Second, 1500 * time.Millisecond, 130 * time.Second} {
			time.Sleep(at - time.Since(began))
			e.changed.beat()
		}
		time.Sleep(200*time.Second - time.Since(began))
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
		// Looks at 2 s and 4 s, the first of which is too early; after 130 s at 132 s.
		if want := []time.Duration{4 * time.Second, 64 * time.Second, 124 * time.Second, 132 * time.Second, 192 * time.Second}; !slices.Equal(got, want) {
			t.Errorf("given back after %v, want %v", got, want)
		}
	})
}

// TestUnchanged: only what is mapped from the executable, cannot be written and
// has no page of its own is given back.
func TestUnchanged(t *testing.T) {
	const smaps = `00400000-01a00000 r-xp 00000000 08:01 42 /usr/bin/nusa
Rss:               20000 kB
Anonymous:             0 kB
01a00000-02c00000 r--p 01600000 08:01 42 /usr/bin/nusa
Anonymous:             4 kB
02c00000-02d00000 r--p 01600000 08:01 42 /usr/bin/nusa
Anonymous:             0 kB
02e00000-02f00000 rw-p 02800000 08:01 42 /usr/bin/nusa
Anonymous:             0 kB
7f0000000000-7f0000001000 r-xp 00000000 08:01 43 /lib/libc.so
Anonymous:             0 kB
c000000000-c000400000 rw-p 00000000 00:00 0
Anonymous:             0 kB
ffffffffff600000-ffffffffff601000 --xp 00000000 00:00 0 [vsyscall]
Anonymous:             0 kB
`
	got := unchanged(bufio.NewScanner(strings.NewReader(smaps)), "/usr/bin/nusa")
	want := []mapping{{0x400000, 0x1a00000}, {0x2c00000, 0x2d00000}}
	if !slices.Equal(got, want) {
		t.Errorf("%x, want %x", got, want)
	}
}
