package place

import "testing"

// TestBriefOfCountedReasons: where several regions reported texts, the brief
// message has the text of the first one, whatever the text contains.
func TestBriefOfCountedReasons(t *testing.T) {
	declined := `jakarta: 3 nodes declined it, such as n1; the latest message: task t: secrets[0]: this node has no such secret: "db"`
	for _, c := range []struct {
		reported, named []string
		want            string
	}{
		{nil, nil, ""},
		{nil, []string{"jakarta", "tokyo"}, ""},
		{[]string{"jakarta"}, nil, ""},
		{[]string{declined}, []string{"tokyo"}, ""},
		{[]string{"jakarta", "tokyo"}, nil, "jakarta; and 1 more region says so"},
		{[]string{"jakarta: full", "tokyo"}, nil, "jakarta: full; and 1 more region says so"},
		{[]string{"jakarta: full", "tokyo", "seoul"}, nil, "jakarta: full; and 2 more regions say so"},
		{[]string{declined, "tokyo: no"}, nil, declined + "; and 1 more region says so"},
	} {
		if got := (&reasonCount{reported: c.reported, named: c.named}).brief(); got != c.want {
			t.Errorf("%q:\n got %q\nwant %q", c.reported, got, c.want)
		}
	}
}
