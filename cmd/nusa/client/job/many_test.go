package job

import (
	"strings"
	"testing"
	"time"
)

// TestSubmitProgress: on a terminal, a line shows the progress once a second has passed.
func TestSubmitProgress(t *testing.T) {
	var b strings.Builder
	early := submitProgress{w: &b, on: true, began: time.Now().Add(time.Hour)}
	elsewhere := submitProgress{w: &b, began: time.Now().Add(-time.Minute)}
	for _, p := range []submitProgress{early, elsewhere} {
		p.draw(3, 0, 990)
		p.clear()
	}
	if b.Len() > 0 {
		t.Errorf("%q was shown", b.String())
	}
	p := submitProgress{w: &b, on: true, began: time.Now().Add(-time.Minute)}
	p.draw(412, 2, 990)
	p.clear()
	p.clear()
	const want = " 410 of 990 jobs submitted, 2 refused\r\x1b[K"
	if got := b.String(); !strings.HasPrefix(got, "\r\x1b[K") || !strings.HasSuffix(got, want) || strings.Count(got, "\x1b[K") != 2 {
		t.Errorf("%q, want %q at the end", got, want)
	}
}
