package global

import "testing"

// TestOneRegion: a line has the first region's words, whole.
func TestOneRegion(t *testing.T) {
	declined := `jakarta: 3 nodes declined it, such as n1; the latest said: task t: secrets[0]: this node has no such secret: "db"`
	for said, want := range map[string]string{
		"":                        "",
		"jakarta":                 "jakarta",
		"jakarta: full":           "jakarta: full",
		"jakarta; tokyo":          "jakarta; and more regions say so",
		"jakarta: full; tokyo":    "jakarta: full; and more regions say so",
		declined:                  declined,
		declined + "; tokyo: no":  declined + "; and more regions say so",
		"jakarta: a; tokyo: b; c": "jakarta: a; and more regions say so",
	} {
		if got := oneRegion(said); got != want {
			t.Errorf("%q:\n got %q\nwant %q", said, got, want)
		}
	}
}
