package term

import "charm.land/lipgloss/v2"

// Palette colours text if On is set. On is not set for a pipe or with NO_COLOR.
type Palette struct{ On bool }

// Paint colours text with one of the terminal's 256 colours.
func (p Palette) Paint(colour, text string) string {
	if !p.On || text == "" {
		return text
	}
	return lipgloss.NewStyle().Foreground(lipgloss.Color(colour)).Render(text)
}

// Bold makes text bold.
func (p Palette) Bold(text string) string {
	if !p.On || text == "" {
		return text
	}
	return lipgloss.NewStyle().Bold(true).Render(text)
}

// Good, Wait and Bad use basic colours of the terminal, which follow the terminal's theme.
func (p Palette) Good(text string) string { return p.Paint("2", text) }
func (p Palette) Wait(text string) string { return p.Paint("3", text) }
func (p Palette) Bad(text string) string  { return p.Paint("1", text) }

// Faint colours text that explains other text.
func (p Palette) Faint(text string) string { return p.Paint("8", text) }

// State colours the name of a state by its meaning.
func (p Palette) State(text string) string {
	switch text {
	case "running", "healthy", "complete", "ready", "connected", "accepted", "taken", "ok", "succeeded", "done", "yes":
		return p.Good(text)
	case "pending", "partial", "starting", "waiting", "stopping", "offered", "defined", "draining", "cordoned", "stale", "predicted", "estimated", "approval", "backoff", "canceling", "exiting", "resetting":
		return p.Wait(text)
	case "failed", "unhealthy", "lost", "disconnected", "rejected", "unreachable", "timed_out", "canceled":
		return p.Bad(text)
	}
	return text
}

// Health returns the coloured text "healthy" or "unhealthy".
func (p Palette) Health(healthy bool) string {
	if healthy {
		return p.Good("healthy")
	}
	return p.Bad("unhealthy")
}
