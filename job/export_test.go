package job

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"google.golang.org/protobuf/proto"
	"pgregory.net/rapid"
)

// TestExportRoundTrip: an exported spec that is submitted again equals the stored spec.
func TestExportRoundTrip(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		stored := anySpec(t)
		Default(stored)
		for _, format := range []Format{YAML, JSON} {
			text, err := Export(stored, format)
			if err != nil {
				t.Fatal(err)
			}
			back, err := Parse(text, "x.yaml")
			if err != nil {
				t.Fatalf("%v\n%s", err, text)
			}
			Default(back)
			if !proto.Equal(stored, back) {
				t.Fatalf("exported:\n%s\ndiffers: %v", text, Diff(stored, back))
			}
		}
	})
}

// TestExportIsShort: an exported file has the settings that the author wrote, and no
// defaults.
func TestExportIsShort(t *testing.T) {
	files, err := filepath.Glob("../examples/*.yaml")
	if err != nil {
		t.Fatal(err)
	}
	seen := 0
	for _, file := range append(files, "testdata/full.yaml") {
		data, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		written, err := Parse(data, file)
		if err != nil {
			if strings.Contains(string(data), "groups:") {
				t.Fatal(err)
			}
			continue // not a job
		}
		seen++
		stored := proto.CloneOf(written)
		Default(stored)
		text, err := Export(stored, YAML)
		if err != nil {
			t.Fatal(err)
		}
		back, err := Parse(text, file)
		if err != nil {
			t.Fatal(err)
		}
		wrote := map[string]string{"namespace": stored.GetNamespace(), "type": strings.ToLower(strings.TrimPrefix(stored.GetType().String(), "JOB_TYPE_"))}
		for name := range stored.Groups {
			wrote["groups."+name+".count"] = "1"
		}
		for _, l := range leaves(written) {
			wrote[l.path] = l.text
		}
		for _, l := range leaves(back) {
			if wrote[l.path] != l.text {
				t.Errorf("%s: %s: %s is in the export and %q in the file", file, l.path, l.text, wrote[l.path])
			}
		}
		Default(back)
		if !proto.Equal(stored, back) {
			t.Errorf("%s: the export differs: %v", file, Diff(stored, back))
		}
	}
	if seen < 4 {
		t.Errorf("only %d job files were found", seen)
	}
}
