package broker

import "testing"

func TestTakes(t *testing.T) {
	for _, c := range []struct {
		stream, filters []string
		want            bool
	}{
		{[]string{"jobs.>"}, nil, false}, {[]string{"jobs.>", "nusa.dead.*"}, nil, true}, {[]string{">"}, nil, true},
		{[]string{">"}, []string{"jobs.>"}, false}, {[]string{">"}, []string{"jobs.>", "nusa.dead.orders"}, true},
		{[]string{"nusa.dead"}, nil, false}, {[]string{"nusa.dead.orders.>"}, nil, false}, {[]string{"nusa.*"}, nil, false},
		{[]string{"nusa.>"}, []string{"*.*.orders"}, true}, {nil, nil, false},
	} {
		if got := takes(c.stream, c.filters, "nusa.dead.orders"); got != c.want {
			t.Errorf("stream %v, filters %v: %v", c.stream, c.filters, got)
		}
	}
}

// TestLetters: a dead letter has the whole body, unless the server does not take it with the headers.
func TestLetters(t *testing.T) {
	full := make([]byte, MaxBody+1)
	d := &Delivery{ID: "1", Key: "jobs.new", full: full}
	d.Body, d.TooLarge = bounded(full)
	m := letter(d, "dead", "too large")
	if !d.TooLarge || len(d.Body) > 0 || len(m.Body) != len(full) {
		t.Errorf("%v, %d and %d bytes", d.TooLarge, len(d.Body), len(m.Body))
	}
	if got := fit(m, 2*MaxBody); len(got.Body) != len(full) || got.Headers[ReasonHeader] != "too large" {
		t.Errorf("%d bytes, %v", len(got.Body), got.Headers)
	}
	got := fit(m, int64(len(full)))
	if want := "too large; the body of 1048577 bytes is left out, because the server takes 1048577 with the headers"; len(got.Body) > 0 || got.Headers[ReasonHeader] != want {
		t.Errorf("%d bytes, %v", len(got.Body), got.Headers)
	}
}
