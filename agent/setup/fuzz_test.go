package setup

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"os"
	"testing"
)

// FuzzArchive: whatever an archive has, nothing outside of its folder changes.
func FuzzArchive(f *testing.F) {
	members := []member{{tar.TypeDir, "./d/", ""}, {tar.TypeReg, "d/x", "one"}, {tar.TypeSymlink, "e/up", "../d/x"}, {tar.TypeLink, "h", "d/x"}, {tar.TypeReg, "../evil", "x"}}
	var zipped bytes.Buffer
	gz := gzip.NewWriter(&zipped)
	_, _ = gz.Write(tarOf(members)) // into memory
	_ = gz.Close()
	kinds := []string{"tar", "zip", "tar.gz"}
	for kind, data := range [][]byte{tarOf(members), zipOf(members[:3]), zipped.Bytes()} {
		f.Add(uint8(kind), data)
	}
	f.Fuzz(func(t *testing.T, kind uint8, data []byte) {
		dir := t.TempDir()
		_ = unpackTo(t, dir, kinds[int(kind)%len(kinds)], data)
		left, err := os.ReadDir(dir)
		if err != nil || len(left) != 2 {
			t.Fatalf("beside the folder are %v, %v", left, err)
		}
		if text, err := os.ReadFile(dir + "/file"); err != nil || !bytes.Equal(text, data) {
			t.Fatalf("the archive itself has changed: %v", err)
		}
	})
}
