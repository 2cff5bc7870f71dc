package setup

import (
	"archive/tar"
	"archive/zip"
	"bytes"
	"compress/gzip"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"

	"github.com/nusa-scheduler/nusa/internal/folder"
	"pgregory.net/rapid"
)

// member is a member of an archive. kind is tar's type.
type member struct {
	kind byte
	name string
	text string // content, or a link's target
}

func tarOf(members []member) []byte {
	var buf bytes.Buffer
	tw := tar.NewWriter(&buf)
	for _, m := range members {
		h := &tar.Header{Typeflag: m.kind, Name: m.name, Mode: 0o6777, Format: tar.FormatPAX}
		switch m.kind {
		case tar.TypeReg:
			h.Size = int64(len(m.text))
		case tar.TypeSymlink, tar.TypeLink:
			h.Linkname = m.text
		}
		_ = tw.WriteHeader(h)
		if m.kind == tar.TypeReg {
			_, _ = tw.Write([]byte(m.text))
		}
	}
	_ = tw.Close()
	return buf.Bytes()
}

func zipOf(members []member) []byte {
	var buf bytes.Buffer
	zw := zip.NewWriter(&buf)
	for _, m := range members {
		h := &zip.FileHeader{Name: m.name, Method: zip.Deflate}
		switch m.kind {
		case tar.TypeReg:
			h.SetMode(0o777)
		case tar.TypeDir:
			h.SetMode(fs.ModeDir | 0o777)
		case tar.TypeSymlink:
			h.SetMode(fs.ModeSymlink | 0o777)
		default:
			h.SetMode(fs.ModeDevice | 0o666)
		}
		w, _ := zw.CreateHeader(h)
		_, _ = w.Write([]byte(m.text))
	}
	_ = zw.Close()
	return buf.Bytes()
}

// unpackTo writes data as a file and unpacks it below dir.
func unpackTo(t *testing.T, dir, kind string, data []byte) error {
	alloc, err := os.OpenRoot(dir)
	if err != nil {
		return err
	}
	defer alloc.Close()
	if err := errors.Join(alloc.WriteFile("file", data, 0o600), alloc.Mkdir("tree", 0o700)); err != nil {
		return err
	}
	return unpackInto(t.Context(), alloc, "file", "tree", kind, &budget{left: 1 << 20, all: 1 << 20})
}

func TestArchives(t *testing.T) {
	good := []member{
		{tar.TypeDir, "./d/", ""}, {tar.TypeReg, "d/x", "one"}, {tar.TypeReg, "e/f/y", "two"},
		{tar.TypeSymlink, "e/up", "../d/x"}, {tar.TypeSymlink, "lib", "e/f"}, {tar.TypeReg, "d/x", "three"},
	}
	for kind, data := range map[string][]byte{"tar": tarOf(append(good, member{tar.TypeLink, "h", "d/x"})), "zip": zipOf(good)} {
		dir := t.TempDir()
		if err := unpackTo(t, dir, kind, data); err != nil {
			t.Errorf("%s: %v", kind, err)
			continue
		}
		for name, want := range map[string]string{"d/x": "three", "e/up": "three", "lib/y": "two", "e/f/y": "two"} {
			got, err := os.ReadFile(filepath.Join(dir, "tree", name))
			if err != nil || string(got) != want {
				t.Errorf("%s: %s is %q: %v", kind, name, got, err)
			}
		}
		if fi, err := os.Stat(filepath.Join(dir, "tree/e/f/y")); err != nil || fi.Mode() != 0o755 {
			t.Errorf("%s: mode %v, without setuid and write for others it is 0755", kind, fi.Mode())
		}
	}
}

// TestHostileArchives: each archive is refused and changes no file outside the folder.
func TestHostileArchives(t *testing.T) {
	for name, members := range map[string][]member{
		"parent":             {{tar.TypeReg, "../evil", "x"}},
		"hidden parent":      {{tar.TypeReg, "a/../../evil", "x"}},
		"absolute":           {{tar.TypeReg, "/evil", "x"}},
		"backslash":          {{tar.TypeReg, `..\evil`, "x"}},
		"deep":               {{tar.TypeReg, strings.Repeat("d/", maxDepth+1) + "x", "x"}},
		"long":               {{tar.TypeReg, strings.Repeat("d", maxName+1), "x"}},
		"absolute link":      {{tar.TypeSymlink, "l", "/etc"}},
		"link out":           {{tar.TypeSymlink, "l", "../outside"}},
		"link out, deep":     {{tar.TypeSymlink, "a/b/l", "../../../outside"}},
		"through a link":     {{tar.TypeSymlink, "l", "."}, {tar.TypeSymlink, "l/l/l/m", "../../outside"}},
		"up from a link":     {{tar.TypeSymlink, "l", "."}, {tar.TypeSymlink, "m", "l/../outside"}},
		"file through link":  {{tar.TypeSymlink, "l", "."}, {tar.TypeReg, "l/x", "x"}},
		"folder is a link":   {{tar.TypeReg, "l/x", "x"}, {tar.TypeSymlink, "l", "."}},
		"hard link out":      {{tar.TypeLink, "h", "../outside"}},
		"hard link absolute": {{tar.TypeLink, "h", "/etc/passwd"}},
		"hard link to link":  {{tar.TypeSymlink, "l", "x"}, {tar.TypeLink, "h", "l"}},
		"device":             {{tar.TypeChar, "null", ""}},
		"block":              {{tar.TypeBlock, "sda", ""}},
		"fifo":               {{tar.TypeFifo, "pipe", ""}},
		"too large":          {{tar.TypeReg, "x", strings.Repeat("x", 2<<20)}},
		"file and folder":    {{tar.TypeReg, "a", "x"}, {tar.TypeReg, "a/b", "x"}},
		"empty link":         {{tar.TypeSymlink, "l", ""}},
	} {
		for kind, data := range map[string][]byte{"tar": tarOf(members), "zip": zipOf(members)} {
			if kind == "zip" && (strings.HasPrefix(name, "hard") || name == "long") {
				continue // zip has no such entry
			}
			dir := t.TempDir()
			err := unpackTo(t, dir, kind, data)
			if !errors.Is(err, errArchive) && !errors.Is(err, errBudget) {
				t.Errorf("%s %s: %v", kind, name, err)
			}
			if left, _ := os.ReadDir(dir); len(left) != 2 {
				t.Errorf("%s %s: outside are %v", kind, name, left)
			}
		}
	}
	for name, data := range map[string][]byte{"empty": nil, "text": []byte("hello"), "cut": tarOf([]member{{tar.TypeReg, "x", strings.Repeat("x", 4096)}})[:2000]} {
		for _, kind := range []string{"tar.gz", "zip", "tar"} {
			if kind == "tar" && name == "empty" {
				continue // no data is a valid empty tar
			}
			if err := unpackTo(t, t.TempDir(), kind, data); !errors.Is(err, errArchive) {
				t.Errorf("%s %s: %v", kind, name, err)
			}
		}
	}
}

// TestArchivesStayInTheirFolder: no archive changes a file outside its folder, and
// no link in it leads outside.
func TestArchivesStayInTheirFolder(t *testing.T) {
	names := rapid.Custom(func(t *rapid.T) string {
		return strings.Join(rapid.SliceOfN(rapid.SampledFrom([]string{"a", "b", "l", ".", ".."}), 1, 4).Draw(t, "parts"), "/")
	})
	members := rapid.SliceOfN(rapid.Custom(func(t *rapid.T) member {
		return member{
			kind: rapid.SampledFrom([]byte{tar.TypeReg, tar.TypeDir, tar.TypeSymlink, tar.TypeSymlink, tar.TypeLink}).Draw(t, "kind"),
			name: names.Draw(t, "name"), text: names.Draw(t, "text"),
		}
	}), 1, 6)
	good := 0
	rapid.Check(t, func(rt *rapid.T) {
		dir, err := os.MkdirTemp(t.TempDir(), "")
		if err != nil {
			rt.Fatal(err)
		}
		if err := unpackTo(t, dir, "tar", tarOf(members.Draw(rt, "members"))); err == nil {
			good++
		}
		if left, _ := os.ReadDir(dir); len(left) != 2 {
			rt.Fatalf("outside are %v", left)
		}
		tree := filepath.Join(dir, "tree")
		err = filepath.WalkDir(tree, func(p string, d fs.DirEntry, err error) error {
			if err != nil || d.Type() != fs.ModeSymlink {
				return err
			}
			// Resolve the target by the kernel's rules, even if the target does not exist.
			if real, err := filepath.EvalSymlinks(p); err == nil && !folder.Below(real, []string{tree}) {
				rt.Fatalf("%s leads to %s", p, real)
			}
			return nil
		})
		if err != nil {
			rt.Fatal(err)
		}
	})
	if good == 0 {
		t.Error("not one archive was good: the test proves nothing")
	}
}

// TestEndlessHeaders: an archive whose headers are far larger than its files is refused.
// Otherwise unpacking ends with its context.
func TestEndlessHeaders(t *testing.T) {
	var buf bytes.Buffer
	gz := gzip.NewWriter(&buf)
	record := func(n int) []byte { // a header with a comment
		text := fmt.Sprintf("%d comment=%s\n", n, strings.Repeat("x", n-len(fmt.Sprint(n))-len(" comment=\n")))
		return []byte(text)
	}
	var one bytes.Buffer
	tw := tar.NewWriter(&one)
	if err := tw.WriteHeader(&tar.Header{Name: "x", Typeflag: tar.TypeReg, PAXRecords: map[string]string{"comment": string(record(1 << 19))}}); err != nil {
		t.Fatal(err)
	}
	header := one.Bytes()[:one.Len()-512] // without the end of the archive
	for written := 0; written <= maxBetween+2<<20; written += len(header) {
		if _, err := gz.Write(header); err != nil {
			t.Fatal(err)
		}
	}
	if err := gz.Close(); err != nil {
		t.Fatal(err)
	}
	if err := unpackTo(t, t.TempDir(), "tar.gz", buf.Bytes()); !errors.Is(err, errArchive) || !strings.Contains(err.Error(), "headers are far larger") {
		t.Errorf("%d bytes that unpack to %d of headers: %v", buf.Len(), maxBetween, err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := (&stream{ctx: ctx, r: rand.Reader, left: 1}).Read(make([]byte, 1)); !errors.Is(err, context.Canceled) {
		t.Errorf("after its time: %v", err)
	}
}

// TestListOfAZipIsLimited: the agent holds the list of a zip in memory and limits it by its real
// length. The length that the file announces does not count.
func TestListOfAZipIsLimited(t *testing.T) {
	whole := zipOf([]member{{tar.TypeReg, "x", ""}})
	at := bytes.Index(whole, []byte("PK\x01\x02"))
	end := bytes.Index(whole, []byte("PK\x05\x06"))
	data := append(bytes.Clone(whole[:at]), bytes.Repeat(whole[at:end], 64<<20/(end-at))...)
	var before, after runtime.MemStats
	data = append(data, whole[end:]...)
	runtime.ReadMemStats(&before)
	err := unpackTo(t, t.TempDir(), "zip", data)
	runtime.ReadMemStats(&after)
	if used := after.TotalAlloc - before.TotalAlloc; !errors.Is(err, errArchive) || used > 200<<20 {
		t.Errorf("a list of %d bytes takes %d: %v", len(data), used, err)
	}
}
