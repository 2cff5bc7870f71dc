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
