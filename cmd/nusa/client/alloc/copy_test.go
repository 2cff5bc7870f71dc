package alloc

import (
	"testing"

	nusav1 "github.com/nusa-scheduler/nusa/proto/nusa/v1"
)

func TestWantedBytes(t *testing.T) {
	for _, c := range []struct{ offset, limit, size, want int64 }{
		{0, 0, 10, 10}, {4, 0, 10, 6}, {4, 3, 10, 3}, {4, 30, 10, 6}, {40, 3, 10, 0}, {0, 0, -1, 0},
	} {
		if got := wanted(&nusav1.ReadFileRequest{Offset: c.offset, Limit: c.limit}, c.size); got != c.want {
			t.Errorf("%+v: %d", c, got)
		}
	}
}
