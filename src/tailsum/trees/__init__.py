"""Binary trees over the spans of a sentence: span trees and grammars."""
