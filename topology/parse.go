package topology

import (
	"bufio"
	"encoding/csv"
	"errors"
	"fmt"
	"io"
	"strconv"
	"strings"
)

// maxCells bounds the cells that are read from a file. It allows four values for each
// directed pair of MaxTableRegions regions.
const maxCells = 4 * MaxTableRegions * MaxTableRegions

// maxTableName and maxPlainLine bound names and lines, in bytes. A longer name or line
// shows that the file has another format.
const (
	maxTableName = 253
	maxPlainLine = 1 << 20
)

// Cell is one recorded round trip. Its value may be impossible: negative, not a number,
// infinite or zero.
type Cell struct {
	// From and To are indexes of Cells.Regions. RTT is in milliseconds.
	From, To int
	RTT      float64
	// Min is the smallest round trip of the same measurement, in milliseconds; 0 =
	// unknown.
	Min float64
	// Line is the line of the file, from 1.
	Line int
}

// Cells holds the round trips of a file in the order of the file, without blanks. Unlike a
// Table, Cells may have several values for a pair, and impossible values.
type Cells struct {
	Regions []string
	Cells   []Cell
}

// ParseMatrix reads the format of ParseTable, but accepts every number. The caller decides
// which numbers can be a round trip. The error is ErrTable.
func ParseMatrix(r io.Reader) (*Cells, error) {
	in, err := newCSV(r)
	if err != nil {
		return nil, err
	}
	head, err := in.Read()
	if err != nil {
		return nil, csvError(err)
	}
	if len(head) == 1 {
		return nil, fmt.Errorf("%w: line 1: the first row has one cell, want a name for each region, separated by commas", ErrTable)
	}
	m := &Cells{}
	for _, name := range head[1:] {
		m.Regions = append(m.Regions, strings.TrimSpace(name))
	}
	index, err := indexNames(m.Regions)
	if err != nil {
		return nil, err
	}
	seen := make([]bool, len(m.Regions))
	for {
		row, err := in.Read()
		if errors.Is(err, io.EOF) {
			return m, nil
		}
		if err != nil {
			return nil, rowError(err, row, head)
		}
		line, _ := in.FieldPos(0)
		from, ok := index[strings.TrimSpace(row[0])]
		if !ok {
			return nil, fmt.Errorf("%w: line %d: region %.64q is not in the first row, which names all regions, as the first column does", ErrTable, line, row[0])
		}
		if seen[from] {
			return nil, fmt.Errorf("%w: line %d: region %.64q comes twice", ErrTable, line, row[0])
		}
		seen[from] = true
		for to, cell := range row[1:] {
			if err := m.add(from, to, cell, "", line); err != nil {
				return nil, err
			}
		}
	}
}

// ParsePlain reads a square matrix of milliseconds without names. Numbers are separated by
// commas or white space. The regions get their positions as names, from "0". A "-", or a
// blank between commas, is unknown. The error is ErrTable.
func ParsePlain(r io.Reader) (*Cells, error) {
	r, err := utf8Text(r)
	if err != nil {
		return nil, err
	}
	in := bufio.NewScanner(r)
	in.Buffer(nil, maxPlainLine)
	m := &Cells{}
	from, line := 0, 0
	for in.Scan() {
		line++
		text := strings.TrimSpace(in.Text())
		if text == "" || text[0] == '#' {
			continue
		}
		row := strings.Fields(text)
		if strings.Contains(text, ",") {
			row = strings.Split(text, ",")
		}
		if from == 0 {
			for i := range row {
				m.Regions = append(m.Regions, strconv.Itoa(i))
			}
			if _, err := indexNames(m.Regions); err != nil {
				return nil, err
			}
		}
		if len(row) != len(m.Regions) || from >= len(m.Regions) {
			return nil, fmt.Errorf("%w: line %d: row %d has %d numbers, want a square of %d", ErrTable, line, from+1, len(row), len(m.Regions))
		}
		for to, cell := range row {
			if err := m.add(from, to, cell, "", line); err != nil {
				return nil, err
			}
		}
		from++
	}
	switch err := in.Err(); {
	case errors.Is(err, bufio.ErrTooLong):
		return nil, fmt.Errorf("%w: line %d: longer than %d bytes", ErrTable, line+1, maxPlainLine)
	case err != nil:
		return nil, fmt.Errorf("%w: line %d: %w", ErrTable, line+1, err)
	case from == 0:
		return nil, fmt.Errorf("%w: line 1: the file is empty", ErrTable)
	case from < len(m.Regions):
		return nil, fmt.Errorf("%w: line %d: the file ends after row %d of %d", ErrTable, line, from, len(m.Regions))
	}
	return m, nil
}

// ParseEdges reads CSV with a header that names the columns src, dst, rtt_ms and
// optionally min_ms. Other columns are ignored. A pair may occur several times. A blank is
// unknown. Regions are in the order in which they first occur. The error is ErrTable.
func ParseEdges(r io.Reader) (*Cells, error) {
	in, err := newCSV(r)
	if err != nil {
		return nil, err
	}
	head, err := in.Read()
	if err != nil {
		return nil, csvError(err)
	}
	column := map[string]int{"src": -1, "dst": -1, "rtt_ms": -1, "min_ms": -1}
	for i, name := range head {
		name = strings.ToLower(strings.TrimSpace(name))
		if at, known := column[name]; known && at >= 0 {
			return nil, fmt.Errorf("%w: line 1: column %.64q comes twice", ErrTable, name)
		} else if known {
			column[name] = i
		}
	}
	for _, name := range []string{"src", "dst", "rtt_ms"} {
		if column[name] < 0 {
			return nil, fmt.Errorf("%w: line 1: no column %q, want src,dst,rtt_ms and optionally min_ms", ErrTable, name)
		}
	}
	m, index := &Cells{}, map[string]int{}
	for {
		row, err := in.Read()
		if errors.Is(err, io.EOF) {
			return m, nil
		}
		if err != nil {
			return nil, rowError(err, row, head)
		}
		line, _ := in.FieldPos(0)
		var ends [2]int
		for i, name := range []string{"src", "dst"} {
			ends[i], err = m.region(index, row[column[name]], line)
			if err != nil {
				return nil, err
			}
		}
		least := ""
		if column["min_ms"] >= 0 {
			least = row[column["min_ms"]]
		}
		if err := m.add(ends[0], ends[1], row[column["rtt_ms"]], least, line); err != nil {
			return nil, err
		}
	}
}

// region returns the index of a name. A new name is added.
func (m *Cells) region(index map[string]int, name string, line int) (int, error) {
	name = strings.TrimSpace(name)
	i, known := index[name]
	switch {
	case name == "":
		return 0, fmt.Errorf("%w: line %d: a region has no name", ErrTable, line)
	case len(name) > maxTableName:
		return 0, fmt.Errorf("%w: line %d: a region's name has %d bytes, at most %d", ErrTable, line, len(name), maxTableName)
	case !known && len(m.Regions) == MaxTableRegions:
		return 0, fmt.Errorf("%w: line %d: more than %d regions", ErrTable, line, MaxTableRegions)
	case !known:
		i = len(m.Regions)
		index[name] = i
		m.Regions = append(m.Regions, name)
	}
	return i, nil
}

// add reads the text of a cell and adds the cell, unless it is blank.
func (m *Cells) add(from, to int, cell, least string, line int) error {
	c := Cell{From: from, To: to, Line: line}
	for _, field := range []struct {
		text string
		into *float64
	}{{cell, &c.RTT}, {least, &c.Min}} {
		text := strings.TrimSpace(field.text)
		if text == "" || text == "-" {
			if field.into == &c.RTT {
				return nil
			}
			continue
		}
		v, err := strconv.ParseFloat(text, 64)
		if err != nil && !errors.Is(err, strconv.ErrRange) { // a number out of range counts as infinite, which is an impossible value
			return fmt.Errorf("%w: line %d: %s to %s: %.64q is not a number of milliseconds", ErrTable, line, m.Regions[from], m.Regions[to], text)
		}
		*field.into = v
	}
	if len(m.Cells) == maxCells {
		return fmt.Errorf("%w: line %d: more than %d round trips", ErrTable, line, maxCells)
	}
	m.Cells = append(m.Cells, c)
	return nil
}

func newCSV(r io.Reader) (*csv.Reader, error) {
	text, err := utf8Text(r)
	if err != nil {
		return nil, err
	}
	in := csv.NewReader(text)
	in.TrimLeadingSpace = true
	in.Comment = '#'
	return in, nil
}

// encodings lists the encodings with their byte order marks, longer marks first.
var encodings = []struct{ mark, name string }{
	{"\xff\xfe\x00\x00", "UTF-32"}, {"\x00\x00\xfe\xff", "UTF-32"}, {"\xff\xfe", "UTF-16"}, {"\xfe\xff", "UTF-16"},
}

// utf8Text returns the text without its byte order mark. A text in another encoding, as
// spreadsheets may write, is refused. The error is ErrTable with the name of the encoding.
func utf8Text(r io.Reader) (io.Reader, error) {
	text := bufio.NewReader(r)
	begin, _ := text.Peek(4) // the caller gets read errors when it reads
	for _, e := range encodings {
		if strings.HasPrefix(string(begin), e.mark) {
			return nil, fmt.Errorf("%w: line 1: the file is in %s: convert it to UTF-8, such as with iconv -f %[2]s -t UTF-8", ErrTable, e.name)
		}
	}
	// The text has no mark. A table usually begins with ASCII characters.
	if strings.Contains(string(begin), "\x00") {
		return nil, fmt.Errorf("%w: line 1: the file has zero bytes, so it is not text, or it is in UTF-16: convert it to UTF-8", ErrTable)
	}
	if strings.HasPrefix(string(begin), "\ufeff") {
		_, _ = text.Discard(len("\ufeff"))
	}
	return text, nil
}

// csvError converts an error of package csv to ErrTable with the line.
func csvError(err error) error {
	var parse *csv.ParseError
	switch {
	case errors.Is(err, io.EOF):
		return fmt.Errorf("%w: line 1: first row: the file is empty", ErrTable)
	case errors.As(err, &parse):
		return fmt.Errorf("%w: line %d: %w", ErrTable, parse.Line, parse.Err)
	}
	return fmt.Errorf("%w: %w", ErrTable, err)
}

// rowError is csvError for a row. It explains that a row has another number of cells than
// the first row.
func rowError(err error, row, head []string) error {
	var parse *csv.ParseError
	if !errors.As(err, &parse) || !errors.Is(err, csv.ErrFieldCount) {
		return csvError(err)
	}
	hint := ""
	if len(row) > len(head) {
		hint = " (the decimal mark is a point: 80.5)"
	}
	return fmt.Errorf("%w: line %d: %d cells, and the first row has %d%s", ErrTable, parse.Line, len(row), len(head), hint)
}

// indexNames returns the indexes of regions by name. Every region needs a unique name.
func indexNames(names []string) (map[string]int, error) {
	if len(names) == 0 || len(names) > MaxTableRegions {
		return nil, fmt.Errorf("%w: line 1: %d regions, want 1..%d", ErrTable, len(names), MaxTableRegions)
	}
	index := make(map[string]int, len(names))
	for i, name := range names {
		if name == "" {
			return nil, fmt.Errorf("%w: line 1: region %d has no name", ErrTable, i+1)
		}
		if len(name) > maxTableName {
			return nil, fmt.Errorf("%w: line 1: the name of region %d has %d bytes, at most %d", ErrTable, i+1, len(name), maxTableName)
		}
		if _, twice := index[name]; twice {
			return nil, fmt.Errorf("%w: line 1: region %.64q comes twice", ErrTable, name)
		}
		index[name] = i
	}
	return index, nil
}
