package golden

import "strings"

// maxLines bounds the lines of a diff. contextLines is the number of equal lines that are
// shown before and after the difference.
const (
	maxLines     = 60
	contextLines = 3
)

// Diff returns the lines between the first and the last difference of two texts. Lines of
// want begin with "- ", lines of got with "+ ".
func Diff(want, got string) string {
	w, g := strings.Split(want, "\n"), strings.Split(got, "\n")
	start := 0
	for start < len(w) && start < len(g) && w[start] == g[start] {
		start++
	}
	end := 0
	for end < len(w)-start && end < len(g)-start && w[len(w)-1-end] == g[len(g)-1-end] {
		end++
	}
	var lines []string
	add := func(prefix string, text []string) {
		for _, line := range text {
			lines = append(lines, prefix+line)
		}
	}
	add("  ", w[max(0, start-contextLines):start])
	add("- ", w[start:len(w)-end])
	add("+ ", g[start:len(g)-end])
	add("  ", w[len(w)-end:min(len(w), len(w)-end+contextLines)])
	if len(lines) > maxLines {
		lines = append(lines[:maxLines:maxLines], "… more lines differ")
	}
	return strings.Join(lines, "\n")
}
