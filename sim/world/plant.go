package world

// planted reports whether a bug of that name is planted, see package doc.
func planted(name string) bool { return plantedName == name }

func plantedNow() string { return plantedName }

var plantedName string
