package topology

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"math"
	"strings"
	"testing"
	"unicode/utf16"
)

func TestParseCellsOfEachFormat(t *testing.T) {
	for _, tc := range []struct {
		name  string
		parse func(io.Reader) (*Cells, error)
		in    string
		want  string
	}{
		{"matrix", ParseMatrix, "\ufeffms,a,b\nb, -3,NaN\na,,1e999\n", "[a b] 2:1>0=-3/0 2:1>1=NaN/0 3:0>1=+Inf/0"},
		{"plain", ParsePlain, "# two\n0 1.5\n\n2\t-\n", "[0 1] 2:0>0=0/0 2:0>1=1.5/0 4:1>0=2/0"},
		{"plain with a mark", ParsePlain, "\ufeff0 1\n2 0\n", "[0 1] 1:0>0=0/0 1:0>1=1/0 2:1>0=2/0 2:1>1=0/0"},
		{"plain with commas", ParsePlain, "0,\n7,0", "[0 1] 1:0>0=0/0 2:1>0=7/0 2:1>1=0/0"},
		{"edges", ParseEdges, "src,when,rtt_ms,dst\nx,noon,5,y\ny,,,z\nx,,6,y\n", "[x y z] 2:0>1=5/0 4:0>1=6/0"},
		{"edges with minimum", ParseEdges, "SRC, dst, rtt_ms, min_ms\nx,y,5,4.5\ny,x,5,\n", "[x y] 2:0>1=5/4.5 3:1>0=5/0"},
		{"no edges", ParseEdges, "src,dst,rtt_ms\n", "[]"},
	} {
		m, err := tc.parse(strings.NewReader(tc.in))
		if err != nil {
			t.Errorf("%s: %v", tc.name, err)
			continue
		}
		got := fmt.Sprint(m.Regions)
		for _, c := range m.Cells {
			got += fmt.Sprintf(" %d:%d>%d=%g/%g", c.Line, c.From, c.To, c.RTT, c.Min)
		}
		if got != tc.want {
			t.Errorf("%s:\n got %s\nwant %s", tc.name, got, tc.want)
		}
	}
	if m, err := ParseMatrix(strings.NewReader("ms,a\na,nan\n")); err != nil || !math.IsNaN(m.Cells[0].RTT) {
		t.Errorf("nan: %v, %v", m, err)
	}
}

// TestOtherEncodingsAreNamed: the error about a file that a spreadsheet saved as "Unicode
// text" names the encoding.
func TestOtherEncodingsAreNamed(t *testing.T) {
	table := func(r io.Reader) (*Cells, error) { _, err := ParseTable(r); return nil, err }
	encoded := func(order binary.AppendByteOrder, mark string, unit int) string {
		var out []byte
		for _, u := range utf16.Encode([]rune(mark + "src,dst,rtt_ms\na,b,1\n")) {
			if unit == 4 {
				out = order.AppendUint32(out, uint32(u))
			} else {
				out = order.AppendUint16(out, u)
			}
		}
		return string(out)
	}
	for _, order := range []binary.AppendByteOrder{binary.LittleEndian, binary.BigEndian} {
		for in, want := range map[string]string{
			encoded(order, "\ufeff", 2): "line 1: the file is in UTF-16: convert it to UTF-8, such as with iconv -f UTF-16 -t UTF-8",
			encoded(order, "\ufeff", 4): "line 1: the file is in UTF-32: convert it to UTF-8",
			encoded(order, "", 2):       "line 1: the file has zero bytes",
		} {
			for i, parse := range []func(io.Reader) (*Cells, error){ParseMatrix, ParsePlain, ParseEdges, table} {
				if _, err := parse(strings.NewReader(in)); !errors.Is(err, ErrTable) || !strings.Contains(err.Error(), want) {
					t.Errorf("reader %d of %.12q: %v, want %q", i, in, err, want)
				}
			}
		}
	}
}

func TestParseErrorsNameTheLine(t *testing.T) {
	many := strings.Repeat("1 ", MaxTableRegions+1)
	for _, tc := range []struct {
		parse    func(io.Reader) (*Cells, error)
		in, want string
	}{
		{ParseMatrix, "", "line 1: first row"},
		{ParseMatrix, "ms,a,b\na,1\n", "line 2: 2 cells, and the first row has 3"},
		{ParseMatrix, "ms,a\na,\"1\n", "line 2"},
		{ParseMatrix, "ms,a,b\n\nb,1,fast\n", `line 3: b to b: "fast" is not a number of milliseconds`},
		{ParseMatrix, "ms,a,a\n", `line 1: region "a" comes twice`},
		{ParsePlain, "", "line 1"},
		{ParsePlain, "1 2\n3\n", "line 2: row 2 has 1 numbers, want a square of 2"},
		{ParsePlain, "1 2\n3 4\n5 6\n", "line 3: row 3"},
		{ParsePlain, "1 2\n", "line 1: the file ends after row 1 of 2"},
		{ParsePlain, "1 2\n3 x\n", `line 2: 1 to 1: "x"`},
		{ParsePlain, many, "1025 regions"},
		{ParseEdges, "", "line 1"},
		{ParseEdges, "src,dst\n", `line 1: no column "rtt_ms"`},
		{ParseEdges, "src,src,dst,rtt_ms\n", `line 1: column "src" comes twice`},
		{ParseEdges, "src,dst,rtt_ms\na,b,1\na,,1\n", "line 3: a region has no name"},
		{ParseEdges, "src,dst,rtt_ms,min_ms\na,b,1,x\n", `line 2: a to b: "x"`},
	} {
		if _, err := tc.parse(strings.NewReader(tc.in)); !errors.Is(err, ErrTable) || !strings.Contains(err.Error(), tc.want) {
			t.Errorf("%.30q: %v, want ErrTable with %q", tc.in, err, tc.want)
		}
	}
}
