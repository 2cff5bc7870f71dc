package main

// finishSchema allows the numbers that JSON does not have.
func finishSchema(schema object) {
	if schema["type"] == "number" { // JSON has no number for these
		delete(schema, "type")
		schema["oneOf"] = []any{object{"type": "number"}, object{"type": "string", "enum": []any{"NaN", "Infinity", "-Infinity"}}}
		return
	}
	for key, value := range schema {
		switch value := value.(type) {
		case object:
			if key == "properties" {
				for _, property := range value {
					finishSchema(property.(object))
				}
				continue
			}
			finishSchema(value)
		case []any:
			for _, one := range value {
				if one, ok := one.(object); ok {
					finishSchema(one)
				}
			}
		}
	}
}
